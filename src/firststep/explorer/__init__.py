"""The explorer: a local web page on which the theory follows a slider; no mathematics in the page itself."""
