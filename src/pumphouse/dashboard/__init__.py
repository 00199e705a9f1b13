"""The page: homes, fleet and events of a hub in a browser on this machine."""
