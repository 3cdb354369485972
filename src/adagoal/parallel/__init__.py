"""Work in other processes, on this machine or on a Ray cluster.

worker_process   an object in another process whose methods are called by name; its exceptions; a safe start
engines          run many independent tasks; the engines "local" and "ray"; workers on Ray
"""
