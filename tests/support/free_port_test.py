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
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        if low <= free_port.LOWEST and high == 65535:
            self.skipTest("the kernel gives out every port here")
        port = free_port.free_port()
        self.assertFalse(low <= port <= high, port)

    def test_a_port_in_use_is_passed_over(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            self.assertFalse(free_port._is_in_use(free_port.free_port()))
            holder.listen()
            self.assertTrue(free_port._is_in_use(holder.getsockname()[1]))


if __name__ == "__main__":
    main()
