"""The web page of a hub: homes, fleet and events, in a browser on this machine."""
