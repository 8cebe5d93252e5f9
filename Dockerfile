# One file, four images: `docker build --target operator|gateway|fetch|engine .`
# Only the engine holds torch, and only the Job that fetches models the clients of its sources.
# The platform is your registry's: build for the nodes that will run them.

FROM python:3.13-slim-trixie AS wheel
WORKDIR /src
# ziglang compiles the engine's native step: the image has no C compiler
RUN pip install --no-cache-dir "hatchling>=1.27" "build>=1.2" "ziglang>=0.15"
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY engine engine
RUN python -m build --wheel --no-isolation --outdir /dist

FROM python:3.13-slim-trixie AS base
# uid 65532 is what the pods ask for (restricted Pod Security)
RUN useradd --uid 65532 --user-group --no-create-home --shell /usr/sbin/nologin argosy
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["argosy"]

FROM base AS operator
COPY requirements/operator.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir --no-deps /dist/*.whl && python -m compileall -q /usr/local/lib/python3.13/site-packages
USER 65532:65532
CMD ["operator", "run"]

FROM base AS gateway
COPY requirements/gateway.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir --no-deps /dist/*.whl && python -m compileall -q /usr/local/lib/python3.13/site-packages
USER 65532:65532
CMD ["gateway", "run"]

FROM base AS fetch
COPY requirements/fetch.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir --no-deps /dist/*.whl && python -m compileall -q /usr/local/lib/python3.13/site-packages
USER 65532:65532
CMD ["fetch", "run"]

FROM base AS engine
COPY requirements/engine.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir --no-deps /dist/*.whl && python -m compileall -q /usr/local/lib/python3.13/site-packages
USER 65532:65532
CMD ["engine", "serve"]
