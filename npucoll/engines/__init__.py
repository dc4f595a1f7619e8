"""Engines move the bytes. ``base`` says what one must do; the built-in ones register through the same hooks as any."""
