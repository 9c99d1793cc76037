"""Processor time: how much each kernel uses, the weights of tenants, and the slowdown of idle kernels.

Words: a *round* measures all kernels once; an idle kernel *rests* while its timers may fire late. This room knows no
session.
"""
