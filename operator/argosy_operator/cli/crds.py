"""`argosy operator crds`: prints the CustomResourceDefinitions as YAML."""


def crds() -> None:
    """Print the CustomResourceDefinitions."""
    from argosy_operator.api.crd.definition import definitions
    from argosy_operator.api.crd.manifest import text

    print("".join(f"---\n{text(crd)}" for crd in definitions()), end="")
