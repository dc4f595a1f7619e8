"""What this plugin saw happen."""

from __future__ import annotations

observed = []
