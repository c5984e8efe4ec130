"Signals that ask a training to stop: the second one ends it, other threads hear none, children ignore them"
import os
import signal
import subprocess
import sys
import threading

import pytest

from reid_lab.core.stopping import StopWatch, children_ignore_stops


def test_the_second_sigterm_has_its_usual_effect():
    program = ("import os, signal\nfrom reid_lab.core.stopping import StopWatch\nwatch = StopWatch()\n"
               "with watch.listening():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
               "    print(watch.reason(), flush=True)\n"
               "    os.kill(os.getpid(), signal.SIGUSR1)\n    os.kill(os.getpid(), signal.SIGUSR1)\n"
               "    os.kill(os.getpid(), signal.SIGTERM)\nprint('not reached')")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == -signal.SIGTERM and run.stdout.strip() == "SIGTERM came"


def test_handlers_come_back_after_an_error():
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    with pytest.raises(ZeroDivisionError), StopWatch().listening(): 1/0
    with pytest.raises(ZeroDivisionError), children_ignore_stops(): 1/0
    assert before == {number: signal.getsignal(number) for number in before}


def test_in_a_thread_nothing_is_handled():
    found = []
    def listen():
        with StopWatch().listening(), children_ignore_stops(): found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGUSR1)]


def test_a_signal_is_passed_on_as_a_file(tmp_path):
    watch, others = StopWatch(signal_file=tmp_path/"stop"), StopWatch(files=[tmp_path/"stop"])
    with watch.listening():
        assert others.reason() == ""
        os.kill(os.getpid(), signal.SIGUSR1)
    assert others.reason() == "", "files are looked at once a second"
    others._looked = 0.
    assert others.reason() == "it was asked to stop"
