#!/usr/bin/env python3
"""Ports that tests of several processes take at the same time are all different, free, and not the kernel's to give."""

import socket
import subprocess
import sys
import unittest
from pathlib import Path

import free_port
from unittest_main import main

PROCESSES, PORTS = 4, 50
# Takes ports, tells them, and keeps them until it is told to end.
TAKER = f"from free_port import free_port; print(*(free_port() for _ in range({PORTS})), flush=True); input()"


class FreePortTest(unittest.TestCase):
    def test_no_two_processes_get_the_same(self):
        takers = [subprocess.Popen([sys.executable, "-c", TAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   cwd=Path(__file__).parent) for _ in range(PROCESSES)]
        ports = [int(word) for taker in takers for word in taker.stdout.readline().split()]
        for taker in takers:
            taker.communicate("\n")
            self.assertEqual(taker.returncode, 0)
        self.assertEqual((len(ports), len(set(ports))), (PROCESSES * PORTS,) * 2)

    def test_the_kernel_does_not_give_it_out(self):
        for low, high in ((32768, 60999), (free_port.LOWEST, 65534), (1024, 29399), (free_port.LOWEST + 1, 65535)):
            ports = set(free_port._outside(low, high))
            self.assertTrue(ports)
            self.assertEqual(ports & {*range(low, high + 1), *free_port.DEFAULTS}, set())
        self.assertIn(free_port.free_port(), free_port._outside(*free_port.kernels_range()))

    def test_any_port_will_do_where_the_kernel_gives_out_every_one(self):
        ports = set(free_port._outside(1024, 65535))
        self.assertEqual(ports, {*range(free_port.LOWEST, 65536)} - free_port.DEFAULTS - {*free_port.STEPS})

    def test_a_port_in_use_is_passed_over(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            self.assertFalse(free_port._is_in_use(free_port.free_port()))
            holder.listen()
            self.assertTrue(free_port._is_in_use(holder.getsockname()[1]))


if __name__ == "__main__":
    main()
