"""Contenders: how each connects, enqueues and works. Who is measured where stands in `bench/contenders.py`."""
