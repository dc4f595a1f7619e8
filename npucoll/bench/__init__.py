"""What ``npucoll bench`` does: measure collectives, check every result, and show the figures."""

from __future__ import annotations
