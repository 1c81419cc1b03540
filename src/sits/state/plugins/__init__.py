"""Plugins that are installed or lie in a folder: found, loaded, replaced and taken away while requests go on."""
