"""The method of each generation of optimizers in which gradients are averaged: one generation a module.

Every module has ``methods(plain, hook)``: the methods, by name, that a wrapped optimizer of class ``plain`` gets.
"""
