"""Trains the demo model: a tiny MiniMax-H3 that knows coloured shapes, their motions and their
sounds.
"""
