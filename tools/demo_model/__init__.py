"""Trains the demo model: a tiny MiniMax-H3 of coloured shapes, their motions and sounds."""
