"""`argosy operator crds`: prints the CustomResourceDefinitions as YAML."""


def crds() -> None:
    """Print the CustomResourceDefinitions."""
    from argosy_operator.api.crd import as_yaml, definitions

    print("".join(f"---\n{as_yaml(crd)}" for crd in definitions()), end="")
