"""Peak memory of two training steps as `price_step` says it, beside what torch's CPU allocator gave out.

    python benchmarks/step_memory.py [NAME ...]     # a line a model, and the ratio; a minute for all

The allocator's own record (`profile_memory` of torch.profiler) is summed up from the first weight on: it counts what
tensors take, and nothing else. The peak of the process (`ru_maxrss`) also holds what torch, oneDNN and the C library
keep for themselves, a few hundred MiB that differ between machines and would hide errors at this size. Each model runs
in a process of its own.
"""
import subprocess
import sys

from reid_lab.recipes import cfan, dmg
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.price import camel_job, reid_job, text_job
from reid_lab.recipes.reid import reid_settings
from reid_lab.recipes.text import text_settings
from reid_lab.training.step_price import measured_memory, price_step

JOBS = dict(
    bot_tiny=lambda: reid_job(reid_settings('quick'), 60),
    transreid_tiny=lambda: reid_job(reid_settings('quick', model='transreid_tiny'), 60),
    dmg_tiny=lambda: reid_job(dmg.method_settings('dmg', 'quick'), 60, dmg.scheme_of('dmg')),
    camel_tiny=lambda: camel_job(Config(preset='quick', train=(('batch_size', 32),))),
    cfam_tiny=lambda: text_job(text_settings('quick', batch_size=32), 60),
    cfan_tiny=lambda: text_job(cfan.method_settings(dict(name='cfan'), 'quick', batch_size=32), 60),
    bot_r50=lambda: reid_job(reid_settings('full', batch_size=8), 751),
    transreid_b16=lambda: reid_job(reid_settings('full', model='transreid_b16', batch_size=4), 751))


def compare(name):
    "One line"
    job = JOBS[name]()
    said, found = price_step(job).memory, measured_memory(job)
    print(f'{name:15} said {said/2**20:8.1f} MiB  measured {found/2**20:8.1f} MiB  ratio {said/found:.3f}', flush=True)


if __name__ == '__main__':
    names = sys.argv[1:] or list(JOBS)
    if len(names) == 1: compare(names[0])
    else:
        for name in names: subprocess.run([sys.executable, __file__, name], check=True, stderr=subprocess.DEVNULL)
