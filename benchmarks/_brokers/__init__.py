"""The brokers of `benchmarks.brokers`: how each is started, and how its best client uses it.

    brokers.py -> measuring -> servers -> a process of the broker
                      |-> worker, in a process of its own -> a client -> the broker

A module for each broker contains its `Broker`, which runs in the benchmark's process, and its
clients, which run in the worker's process, with the packages of .venv-brokers.
"""
