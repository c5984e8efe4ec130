"A captioner that sees a t-shirt everywhere, one that errs, and their photographs"
import json
from collections import Counter

import torch

from reid_lab.core.basics import stream
from reid_lab.datasets.captioning import rules as R, run as caption_run, traces as T
from reid_lab.datasets.image_sets import tiny_table

WHY = dict(evidence="arms", reason="as seen")
SEEN = dict(name="upper", value="t-shirt", evidence="body", confidence=.9, visible=True)
STEP = dict(attribute="upper", used=True, phrase="t-shirt", reason="")


class Echo:
    "Sees a t-shirt everywhere; counts how often it is asked"
    name, prompt_hash = "echo", "0"
    def __init__(self, draft="A person in a t-shirt."): self.draft, self.asked = draft, Counter()
    def settings(self, photo): return dict(model=self.name, draft=self.draft)
    def perceive(self, photo, attempt=0):
        self.asked[photo.image] += 1
        return dict(attributes=[SEEN])
    def compose(self, attributes, attempt=0): return dict(S_init=self.draft, trace_gen=[STEP])
    def audit(self, photo, text, attempt=0): return dict(corrections=[])


def photo_of(i=0):
    "A photograph of its own for each number"
    pixels = tiny_table(4, 1).image(i)
    return T.Photo(f"{i}.png", i, pixels, T.digest(pixels))


def a_record(i=0, **kw): return caption_run.caption_image(photo_of(i), Echo(**kw))


def a_truth(rng):
    "What is true of an image, drawn"
    values = {a: list(w)[int(rng.integers(len(w)))] for a, w in R.WORDS.items() if rng.random() < .7}
    values = R.speakable(values)
    hidden = frozenset(a for a in R.WORDS if a not in values)
    return R.Truth(values, hidden, {a: f"{a}: there" for a in values}, {a: 1. for a in values})


def captioned(n=40, seed=0, rates=R.Rates(), factor=.2):
    "Truths, and records of a captioner with such errors"
    truths = {f"{i}.png": a_truth(stream(i, "truth")) for i in range(n)}
    backend = R.RuleCaptioner(truths, rates, rates.times(factor), seed)
    pixels = tiny_table(1, 1).image(0)
    return truths, [caption_run.caption_image(T.Photo(p, 1, pixels, p), backend) for p in truths]


class Wrong(Echo):
    "One answer that does not hold"
    def __init__(self, question, answer):
        super().__init__()
        self.question, self.given = question, answer
    def perceive(self, photo, attempt=0): return self.given if self.question == "perceive" else super().perceive(photo)
    def compose(self, attributes, attempt=0): return self.given if self.question == "compose" else super().compose([])
    def audit(self, photo, text, attempt=0): return self.given if self.question == "audit" else dict(corrections=[])


class Words:
    "What a tiny model is built from: its tokenizer, its sizes"
    template = ("{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}"
                "{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}<ask>")
    prompts = dict(perceive="What is seen?", compose="Describe {attributes}", audit="Check {caption}")
    answers = dict(perceive=json.dumps(dict(attributes=[SEEN, dict(SEEN, name="bag", value="none")])),
                   compose="Here it is: " + json.dumps(dict(S_init="A person in a t-shirt.", trace_gen=[STEP])),
                   audit=json.dumps(dict(corrections=[{"op": "edit", "from": "t-shirt", "to": "orange coat", **WHY}])))


def build_model(folder, width=32, layers=1, room=1500):
    "A LLaVA with random weights, saved with its processor by the installed transformers"
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<end>", "<ask>", "<image>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    engine.train_from_iterator([*Words.answers.values(), *Words.prompts.values()], trainer)
    tok = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<end>", pad_token="<end>",
                                  additional_special_tokens=special[1:])
    small = dict(hidden_size=width, intermediate_size=2*width, num_hidden_layers=layers, num_attention_heads=2)
    config = LlavaConfig(vision_config=CLIPVisionConfig(**small, image_size=32, patch_size=16), vision_feature_layer=-1,
                         text_config=LlamaConfig(**small, vocab_size=len(tok), max_position_embeddings=room,
                                                 bos_token_id=None, eos_token_id=0), image_token_index=2)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    see = CLIPImageProcessor(size=dict(shortest_edge=32), crop_size=dict(height=32, width=32))
    processor = LlavaProcessor(see, tok, patch_size=16, vision_feature_select_strategy="default",
                               num_additional_image_tokens=1, chat_template=Words.template)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor
