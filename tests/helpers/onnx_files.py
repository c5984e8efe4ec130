"Small ONNX files, built node by node."
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
KINDS = {"float": TensorProto.FLOAT, "half": TensorProto.FLOAT16, "bytes": TensorProto.UINT8}


def write_tower(path, shape=("batch", 3, 64, 32), kind="float", scores=False, flat=True, more=()):
    """A convolution and the mean of its map, for images of a shape: channels first, or last if the shape says so.
    `scores`: an output beside the feature; `flat=False`: the map is the output; `more`: names of further inputs"""
    info = helper.make_tensor_value_info
    nodes, at = [], "images"
    if kind != "float":
        nodes.append(helper.make_node("Cast", [at], ["numbers"], to=TensorProto.FLOAT))
        at = "numbers"
    if shape[3] == 3:
        nodes.append(helper.make_node("Transpose", [at], ["first"], perm=[0, 3, 1, 2]))
        at = "first"
    nodes.append(helper.make_node("Conv", [at, "w"], ["map"], strides=[2, 2]))
    outputs = [info("map", TensorProto.FLOAT, [shape[0], 8, None, None])]
    if flat:
        nodes += [helper.make_node("GlobalAveragePool", ["map"], ["pooled"]),
                  helper.make_node("Flatten", ["pooled"], ["feature"])]
        outputs = [info("feature", TensorProto.FLOAT, [shape[0], 8])]
    if scores:
        nodes.append(helper.make_node("Softmax", ["feature"], ["scores"]))
        outputs.append(info("scores", TensorProto.FLOAT, [shape[0], 8]))
    inputs = [info("images", KINDS[kind], list(shape)), *(info(name, TensorProto.FLOAT, [1]) for name in more)]
    graph = helper.make_graph(nodes, "tower", inputs, outputs, [numpy_helper.from_array(WEIGHT, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
