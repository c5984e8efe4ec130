"People as striped boxes that walk: frames, their boxes, and the boxes as a file"
import numpy as np


def scene(k: int, n_people: int = 2, height: int = 96, width: int = 160) -> np.ndarray:
    "Frame k: people as striped boxes that walk, on a background that changes slowly"
    rng = np.random.default_rng(3)
    frame = np.full((height, width, 3), (190, 200, 205), np.uint8) + rng.integers(0, 20, (height, width, 1), np.uint8)
    for p in range(n_people):
        x, y, w, h = box_of(k, p)
        frame[y:y + h, x:x + w] = (220 - 80*p, 40 + 60*p, 40 + 3*k)
        frame[y + h//2:y + h, x:x + w] = (30, 30 + 40*p, 90)
    return frame


def box_of(k: int, p: int) -> tuple:
    "Box x, y, w, h of person p in frame k, from 0"
    return 4 + 3*k + 50*p, 20 + 4*p, 18, 48


def mot_lines(n: int = 24, people: int = 2, order: str = "id") -> str:
    "Ground truth of MOT16 for these frames: sorted by id, as the benchmark has it, or by frame"
    rows = [(k, p) for p in range(people) for k in range(n)]
    if order == "frame": rows.sort()
    lines = []
    for k, p in rows:
        x, y, w, h = box_of(k, p)
        lines.append(f"{k + 1},{p + 1},{x + 1},{y + 1},{w},{h},1,1,1.0")
    return "\n".join(lines) + "\n"
