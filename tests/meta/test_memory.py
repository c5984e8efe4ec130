"""The error memory and the memory of the released program: order, capacity, weight of their term."""
import pytest
import torch

from reid_lab.meta.memory import ContrastMemory, ErrorMemory, capacity_for


@pytest.mark.parametrize("epoch, weight", [(11, 0), (12, .025), (13, .05), (17, .15), (18, .15), (29, .15)])
def test_weight_of_the_memory_term(epoch, weight): assert ContrastMemory().weight_at(epoch) == pytest.approx(weight)


def test_memory_is_first_in_first_out():
    mem = ErrorMemory(capacity_for(.5, 4))
    for i in range(5):
        mem.push(dict(img=torch.full((2, 3), float(i)), txt=torch.zeros(2, 3), pid=torch.tensor([2*i, 2*i + 1]),
                      img_tok=torch.zeros(2, 1, 3),
                      txt_tok=torch.zeros(2, i + 1, 3), mask=torch.ones(2, i + 1, dtype=torch.bool)))
    assert len(mem) == 4 and mem.read()["pid"].tolist() == [6, 7, 8, 9]
    assert mem.read()["mask"].sum(1).tolist() == [4, 4, 5, 5]


@pytest.mark.parametrize("share, batch, entries", [(.05, 64, 7), (.5, 64, 64), (1., 10, 20), (0., 64, 0)])
def test_capacity(share, batch, entries): assert capacity_for(share, batch) == entries


@pytest.mark.parametrize("capacity", [5, 560])
def test_the_memory_of_the_released_program_holds_so_many_embeddings(capacity):
    memory = ContrastMemory(capacity=capacity)
    for i in range(4): memory.push(dict(img=torch.full((3, 2), float(i)), txt=torch.zeros(3, 2), pid=torch.arange(3)))
    assert len(memory) == min(12, capacity)
