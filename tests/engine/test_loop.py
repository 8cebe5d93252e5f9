"""The engine thread's end."""

import threading

from tests.kv.nodes import BLOCK, Node, until


async def test_whoever_waits_when_the_thread_ends_is_told_to_ask_another_engine():
    node = Node("decode", "text")
    computing, go_on = node.hold_steps()
    running = node.ask([5] * BLOCK)
    await until(computing.is_set)
    in_the_inbox = node.ask([6] * BLOCK)
    ending = threading.Thread(target=node.close)
    ending.start()
    await until(lambda: node.loop.unfinished == 3)  # both, and the word to stop
    go_on.set()
    await until(lambda: not ending.is_alive())
    too_late = node.ask([7] * BLOCK)
    assert {client.end for client in (running, in_the_inbox, too_late)} == {"draining"}
