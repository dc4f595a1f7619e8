"""Compares npucoll with its peers; started by ``peers.py`` beside this package."""
