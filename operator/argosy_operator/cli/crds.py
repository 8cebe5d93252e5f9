"""`argosy operator crds`: prints the CustomResourceDefinitions as YAML."""


def crds() -> None:
    """Print the CustomResourceDefinitions."""
    from argosy_operator.api.crd import documents, text

    print("".join(f"---\n{text(crd)}" for crd in documents()), end="")
