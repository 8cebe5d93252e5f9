"""KV over NIXL, as far as both ends have its package; TCP otherwise (designs/0008)."""
