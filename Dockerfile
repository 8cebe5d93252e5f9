# One file, five images: --target operator|gateway|fetch|engine|engine-cpu. `make release` builds
# them with buildah; docker reads the same file. The wheels come from `make release` too, so that an
# image holds the very files that users can install:
#   docker build --target operator --build-arg VERSION=0.1.0 .
# `make release` gives BASE the digest of that day and writes it into the image's labels.
ARG BASE=docker.io/library/debian:trixie-slim

# Python is Debian's; the time zones come from PyPI, and no image has pip.
FROM ${BASE} AS base
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates python3 \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/debconf/*
# uid 65532 is what the pods ask for (restricted Pod Security)
RUN useradd --system --uid 65532 --user-group --no-create-home --shell /usr/sbin/nologin argosy
ENV PATH=/opt/argosy/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["argosy"]

# What installs, which the images mount while they are built.
FROM base AS build
# By which certificates package indexes are trusted, where a proxy has its own.
ARG CA=/etc/ssl/certs/ca-certificates.crt
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip \
 && PIP_CERT=${CA} pip install -q --root-user-action=ignore --break-system-packages --no-cache-dir "uv>=0.9,<1"
ARG VERSION
COPY requirements /requirements
COPY build/release/${VERSION}/*.whl /wheels/

FROM base AS operator
ARG CA=/etc/ssl/certs/ca-certificates.crt
RUN --mount=type=bind,from=build,target=/build SSL_CERT_FILE=${CA} /build/requirements/install.sh operator.txt
USER 65532:65532
CMD ["operator", "run"]

FROM base AS gateway
ARG CA=/etc/ssl/certs/ca-certificates.crt
RUN --mount=type=bind,from=build,target=/build SSL_CERT_FILE=${CA} /build/requirements/install.sh gateway.txt
USER 65532:65532
CMD ["gateway", "run"]

# Only the Job that fetches models has the clients of their sources.
FROM base AS fetch
ARG CA=/etc/ssl/certs/ca-certificates.crt
RUN --mount=type=bind,from=build,target=/build SSL_CERT_FILE=${CA} /build/requirements/install.sh fetch.txt
USER 65532:65532
CMD ["fetch", "run"]

FROM base AS engine-packages
ARG CA=/etc/ssl/certs/ca-certificates.crt
RUN --mount=type=bind,from=build,target=/build SSL_CERT_FILE=${CA} /build/requirements/install.sh engine.txt

# Triton compiles a C file of its own when it meets a GPU: here, so that the image needs no compiler.
FROM engine-packages AS triton
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev
RUN mkdir -p /opt/argosy/lib/argosy && python -m argosy_engine.model.attention.driver

FROM engine-packages AS engine
COPY --from=triton /opt/argosy/lib/argosy /opt/argosy/lib/argosy
USER 65532:65532
CMD ["engine", "serve"]

# PyPI's torch for x86-64 is the one with CUDA; Debian's is for CPUs, so torch and numpy are Debian's.
FROM base AS engine-cpu
ARG CA=/etc/ssl/certs/ca-certificates.crt
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-torch \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/debconf/*
RUN --mount=type=bind,from=build,target=/build SSL_CERT_FILE=${CA} /build/requirements/install.sh engine-cpu.txt --system-site-packages
USER 65532:65532
CMD ["engine", "serve"]
