"""The MiniMax-H3 engine: a render spec goes in, a video with sound comes out.

Importing this package loads neither the compiled library nor numpy; its modules do, when needed.
"""
