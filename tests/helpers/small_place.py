"What commands are tried on: two crops, features of them, and weights of another model"
import numpy as np
import torch
from PIL import Image

from reid_lab.models.osnet import OSNet
from reid_lab.retrieval.embeddings import Embeddings


def write_small_place(folder):
    "Write `crops`, `features` and `osnet.pth`, and give the features"
    (folder/"crops").mkdir()
    for i in range(2): Image.fromarray(np.full((64, 32, 3), 90*i, np.uint8)).save(folder/"crops"/f"{i}.png")
    features = Embeddings(np.eye(4, dtype=np.float32), [0, 0, 1, 1], cam=[0, 1, 0, 1])
    features.save(folder/"features")
    torch.save(OSNet("osnet_x0_25").state_dict(), folder/"osnet.pth")
    return features
