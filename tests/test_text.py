"""The text tower with shared prefix gives what transformers' own full-length forward gives."""

import html
import json
import re
import shutil
import subprocess
import sys
from functools import cache

import ftfy
import numpy as np
import pytest
import torch
from checkpoints import tiny_clip
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.prompt import (
    clean_name,
    cleaned,
    initial_context,
    layout_context,
    layout_template,
    prompted_alike,
    tokenize,
)
from dspt.backbone.text import TextTower
from dspt.internal.errors import InputError

# name -> what the text config changes; between them every layer count, activation and head size that matters
VARIANTS = {
    "base": {},
    "one layer": {"num_hidden_layers": 1},
    "two layers, gelu": {"num_hidden_layers": 2, "hidden_act": "gelu"},
    "five layers, one head": {"num_hidden_layers": 5, "num_attention_heads": 1},
    "wide": {"hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 3},
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        name: open_checkpoint(tiny_clip(root / name.replace(" ", "-"), seed=i, text_only=i % 2 == 0, **text))
        for i, (name, text) in enumerate(VARIANTS.items())
    }


@cache
def full_model(folder):
    """transformers' own text tower, its projection, and its tokenizer."""
    from transformers import CLIPModel, CLIPTextModelWithProjection, CLIPTokenizerFast

    text_only = json.loads((folder / "config.json").read_text())["model_type"] == "clip_text_model"
    kind = CLIPTextModelWithProjection if text_only else CLIPModel
    model = kind.from_pretrained(folder).eval().requires_grad_(False)
    return model.text_model, model.text_projection, CLIPTokenizerFast.from_pretrained(folder)


def reference(checkpoint, texts, context):
    """Features of full 77-token texts by transformers' own forward; context row r is written as -1 - r."""
    model, projection, _ = full_model(checkpoint.folder)
    table = model.embeddings.token_embedding
    original, size = table.weight, len(table.weight)
    # Context vectors enter as extra rows of the embedding table, so the forward is not touched at all.
    rows = torch.cat([original.detach(), context.reshape(-1, context.shape[-1])])
    table.weight = extended = torch.nn.Parameter(rows)
    ids = [[i if i >= 0 else size - 1 - i for i in text] for text in texts]
    padded = torch.tensor([text + [checkpoint.end_token] * (77 - len(text)) for text in ids])
    features = torch.nn.functional.normalize(projection(model(input_ids=padded).pooler_output), dim=1)
    table.weight = original
    return features, lambda: extended.grad[size:].view(context.shape)


def clip_clean(text):
    """A text as OpenAI's tokenizer cleans it, step by step, before it lowers it and looks for words."""
    mended = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    return re.sub(r"\s+", " ", mended).strip()


def coop_texts(checkpoint, names, length, position, class_specific):
    """The texts as CoOp builds them, with transformers' tokenizer."""
    _, _, tokenizer = full_model(checkpoint.folder)
    texts = []
    for c, raw in enumerate(names):
        name = raw.replace("_", " ")
        ids = tokenizer(clip_clean(name + ".")).input_ids  # SOT name . EOT
        words = len(tokenizer(clip_clean(name)).input_ids) - 2
        start = c * length if class_specific else 0
        context = [-1 - r for r in range(start, start + length)]
        half = {"end": length, "middle": length // 2, "front": 0}[position]
        texts.append(ids[:1] + context[:half] + ids[1 : 1 + words] + context[half:] + ids[1 + words :])
    return texts


def compare(checkpoint, names, length, position, class_specific, memory_limit, seed):
    layout = layout_context(checkpoint, names, length, position, class_specific)
    tower = TextTower(checkpoint, memory_limit=memory_limit)
    context = initial_context(checkpoint, tower.embeddings, layout, seed).mul_(5).requires_grad_()
    features = tower.compile(layout)(context)
    expected, gradient = reference(
        checkpoint,
        coop_texts(checkpoint, names, length, position, class_specific),
        context.detach(),
    )
    weights = torch.from_numpy(np.random.RandomState(seed).randn(*features.shape)).float()
    (features * weights).sum().backward()
    (expected * weights).sum().backward()
    assert (features - expected).abs().max() <= 1e-6
    assert (context.grad - gradient()).norm() <= 1e-5 * gradient().norm()
    return tower.compile(layout)


NAMES = st.lists(
    st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="<"),
        min_size=1,
        max_size=9,
    ).filter(lambda name: clip_clean(name.replace("_", " "))),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40)
@given(data=st.data())
def test_features_and_context_gradient_equal_the_full_forward(checkpoints, data):
    checkpoint = checkpoints[data.draw(st.sampled_from(sorted(VARIANTS)))]
    names = data.draw(NAMES | st.lists(st.sampled_from(["a", "a b", "a b c", "ab", "b a"]), min_size=1))
    length = data.draw(st.integers(1, 16))
    position = data.draw(st.sampled_from(["end", "middle", "front"]))
    class_specific = data.draw(st.booleans())
    limit = data.draw(st.sampled_from([1, 500_000, 2**31]))
    tokens = [tuple(tokenize(checkpoint, clean_name(name) + ".")) for name in names]
    assume(len(set(tokens)) == len(names))
    compare(
        checkpoint,
        names,
        length,
        position,
        class_specific,
        limit,
        seed=data.draw(st.integers(0, 99)),
    )


def test_a_name_that_ends_in_a_space_keeps_its_full_stop_apart_as_in_coop(checkpoints):
    compare(checkpoints["base"], [":_", "a+_", "a+"], 4, "end", False, 2**31, seed=0)


def test_a_name_of_millions_of_characters_is_refused_at_once(checkpoints):
    with pytest.raises(InputError, match="it has 10000000 characters; no prompt has room"):
        layout_context(checkpoints["base"], ["x" * 10_000_000, "dog"])


def test_classes_in_chunks_give_the_same_gradient(checkpoints):
    names = [f"{a} {b}" for a in ("cat", "red panda", "dog") for b in "stuvwxyz"]
    for position in ["end", "middle"]:
        prompts = compare(checkpoints["base"], names, 16, position, False, memory_limit=1, seed=3)
        assert len(prompts._chunks) > 1


@pytest.mark.parametrize("blocks", [1, 2, 5, 11])
def test_what_fits_into_memory_is_kept_and_only_the_rest_computed_again(checkpoints, monkeypatch, blocks):
    monkeypatch.setattr("dspt.backbone.blocks._BLOCK_ROWS", 8)
    names = [f"{a} {b}" for a in ("cat", "red panda", "dog") for b in "stuvwxyz"]

    def compiled(memory_limit):
        return compare(checkpoints["base"], names, 4, "end", False, memory_limit, seed=3)

    whole = compiled(2**40)
    (everything,) = whole._chunks
    assert len(everything.mask) > 11
    a_block = (whole.kept_bytes - compiled(1).kept_bytes) / (len(everything.mask) - 1)
    prompts = compiled(int(blocks * a_block))
    *again, kept = [len(chunk.mask) for chunk in prompts._chunks]
    assert sum(again) + kept == len(everything.mask)
    assert kept == blocks
    assert max(again) == min(sum(again), -(-blocks // 8))  # an eighth of the limit at a time


def test_a_step_computes_one_prefix_and_packed_suffixes(checkpoints):
    checkpoint = checkpoints["base"]
    tower = TextTower(checkpoint)

    def tokens(names, position="end", class_specific=False):
        return tower.compile(layout_context(checkpoint, names, 16, position, class_specific)).tokens

    # SOT and 16 contexts once; "cat . EOT" and "red panda . EOT"
    assert tokens(["cat", "red panda"]) == 17 + 3 + 4
    # "red" is computed once for both
    assert tokens(["red cat", "red panda"]) == 17 + 4 + 3
    # SOT and 8 contexts shared; then each class's name, the other 8, "." and EOT
    assert tokens(["cat", "red panda"], "middle") == 9 + (1 + 8 + 2) + (2 + 8 + 2)
    assert tokens(["cat", "red panda"], "front") == 1 + (1 + 16 + 2) + (2 + 16 + 2)
    assert tokens(["cat", "red panda"], class_specific=True) == 1 + (16 + 3) + (16 + 4)


def test_names_that_begin_alike_share_work_exactly(checkpoints):
    names = ["red panda", "red cat", "red", "red panda dog", "dog"]
    for position in ["end", "middle", "front"]:
        compare(checkpoints["base"], names, 6, position, False, 2**31, seed=1)


def test_templates_equal_the_full_forward(checkpoints):
    checkpoint = checkpoints["base"]
    names = ["cat", "red_panda", "dog"]
    _, _, tokenizer = full_model(checkpoint.folder)
    for template in ["a photo of a {}.", "{} texture.", "{}"]:
        texts = [tokenizer(template.format(n.replace("_", " "))).input_ids for n in names]
        expected, _ = reference(checkpoint, texts, torch.zeros(1, 32))
        features = TextTower(checkpoint).compile(layout_template(checkpoint, names, template))()
        assert (features - expected).abs().max() <= 1e-6


def test_context_from_words_is_their_token_embeddings(checkpoints):
    checkpoint = checkpoints["base"]
    tower = TextTower(checkpoint)
    layout = layout_context(checkpoint, ["cat", "dog"], 4)
    context = initial_context(checkpoint, tower.embeddings, layout, 1, words="a photo of a")
    template = tower.compile(layout_template(checkpoint, ["cat", "dog"], "a photo of a {}."))()
    assert torch.allclose(tower.compile(layout)(context), template, atol=1e-6)
    with pytest.raises(InputError, match="3 tokens, but the context has 4"):
        initial_context(checkpoint, tower.embeddings, layout, 1, words="a photo of")


def test_context_starts_at_normal_with_std_0_02(checkpoints):
    layout = layout_context(checkpoints["base"], [f"x{i}" for i in range(60)], 16, class_specific=True)
    context = initial_context(checkpoints["base"], torch.zeros(1, 32), layout, seed=0)
    assert context.shape == (60, 16, 32)
    assert abs(context.std().item() - 0.02) < 3e-4
    assert abs(context.mean().item()) < 3e-4


def test_tokenizer_equals_transformers_with_and_without_tokenizer_json(checkpoints, tmp_path):
    folder = checkpoints["base"].folder
    shutil.copytree(folder, tmp_path / "plain")
    (tmp_path / "plain" / "tokenizer.json").unlink()
    _, _, theirs = full_model(folder)
    for text in ["a photo of a cat.", "Ünïcode 東京 😀", "747-400  'S (old).", "don't", "a\tb\nc"]:
        for ours in [folder, tmp_path / "plain"]:
            tokens = open_checkpoint(ours).tokenizer.encode(text, add_special_tokens=False).ids
            assert tokens == theirs(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("potter\u2019s wheel", "potter's wheel"),
        ("\u201cbig\u201d cat", '"big" cat'),
        ("mac &amp; cheese", "mac & cheese"),
        ("mac &amp;amp; cheese", "mac & cheese"),
        ("<mac> &amp;amp; cheese", "<mac> & cheese"),  # ftfy leaves what may be HTML alone
        ("\ufb01sh", "fish"),
        ("cr\u00c3\u00a8me br\u00c3\u00bbl\u00c3\u00a9e", "cr\u00e8me br\u00fbl\u00e9e"),  # UTF-8 read as Latin-1
        ("\uff23at", "Cat"),
        (" red \t\n panda\u00a0", "red panda"),
        ("caf\u00e9 \u6771\u4eac", "caf\u00e9 \u6771\u4eac"),
    ],
)
def test_texts_are_cleaned_as_clip_cleans_them(text, clean, checkpoints):
    assert cleaned(text) == clip_clean(text) == clean
    tokens = open_checkpoint(checkpoints["base"].folder).tokenizer.encode(clean, add_special_tokens=False).ids
    assert tokenize(checkpoints["base"], text) == tokens


@given(st.text(st.characters(codec="ascii")))
def test_printable_ascii_needs_no_mending(text):
    assert cleaned(text) == clip_clean(text)


def test_ordinary_names_do_not_wait_for_ftfy():
    code = "import sys; from dspt.backbone.prompt import cleaned; cleaned('red panda'); print('ftfy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_names_that_become_one_prompt_are_known(checkpoints):
    names = ["red_panda", "Dog", "red panda", "dog", "dogs"]
    assert prompted_alike(checkpoints["base"], names) == [0, 1, 0, 1, 4]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cat", ""], "class name '': it is empty"),
        (["cat", " _ "], "it is empty"),
        (["cat", "dog " * 60], "its prompt is .* tokens long, but .* takes 77; shorten"),
        (["cat", "dog<|endoftext|>"], "marks start or end of a text"),
        ([], "the list is empty"),
        (
            ["red_panda", "dog", "red panda"],
            "'red_panda' and 'red panda': they become the same prompt",
        ),
        (["Cat", "cat "], "'Cat' and 'cat ': they become the same prompt"),
        (["AT&amp;T", "AT&T"], "'AT&amp;T' and 'AT&T': they become the same prompt"),
        (["cat", "dog&lt;|endoftext|&gt;"], "marks start or end of a text"),
        (["cat", "\x07"], "it is empty"),
    ],
)
def test_bad_names_are_named(checkpoints, names, message):
    with pytest.raises(InputError, match=message):
        layout_context(checkpoints["base"], names)


def test_a_tokenizer_saved_with_padding_and_truncation_reads_names_whole(checkpoints, tmp_path):
    from tokenizers import Tokenizer

    shutil.copytree(checkpoints["base"].folder, tmp_path / "clip")
    path = str(tmp_path / "clip" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_padding(length=77)
    tokenizer.enable_truncation(4)
    tokenizer.save(path)
    name = "a photo of a red panda dog"
    saved = layout_context(open_checkpoint(tmp_path / "clip"), [name, "cat"])
    assert saved == layout_context(checkpoints["base"], [name, "cat"])


def test_a_name_that_just_fits_77_tokens_works(checkpoints):
    fitting = " ".join(["dog"] * (77 - 16 - 3))
    compare(checkpoints["base"], [fitting, "cat"], 16, "end", False, 2**31, seed=0)
    with pytest.raises(InputError, match="78 tokens"):
        layout_context(checkpoints["base"], [fitting + " dog"])


def test_bad_checkpoints_are_refused_in_one_sentence(checkpoints, tmp_path):
    def altered(name, change):
        folder = tmp_path / name
        shutil.copytree(checkpoints["base"].folder, folder)
        change(folder)
        return folder

    def set_type(kind):
        def change(folder):
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "model_type": kind}))

        return change

    def weights_as_pickle(folder):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    def truncate(folder):
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[:1000])

    cases = {
        "siglip": (set_type("siglip"), "SigLIP's text tower is not causal"),
        "bert": (set_type("bert"), "model_type is 'bert'"),
        "pickle": (weights_as_pickle, "no .safetensors weights"),
        "no-config": (lambda f: (f / "config.json").unlink(), "no config.json"),
        "bad-json": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        "truncated": (truncate, "model.safetensors cannot be read"),
    }
    for name, (change, message) in cases.items():
        folder = altered(name, change)
        with pytest.raises(InputError, match=message):
            TextTower(open_checkpoint(folder))
    with pytest.raises(InputError, match="no such folder"):
        open_checkpoint(tmp_path / "nowhere")


def test_a_hub_id_in_the_cache_needs_no_network(checkpoints, tmp_path, monkeypatch):
    import huggingface_hub.constants as hub

    snapshot = tmp_path / "models--org--clip" / "snapshots" / "abc"
    shutil.copytree(checkpoints["base"].folder, snapshot)
    refs = tmp_path / "models--org--clip" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert open_checkpoint("org/clip").fingerprint == checkpoints["base"].fingerprint
    with pytest.raises(InputError, match="not in the local Hugging Face cache"):
        open_checkpoint("org/other")


def test_fingerprint_follows_content_not_path(checkpoints, tmp_path):
    shutil.copytree(checkpoints["base"].folder, tmp_path / "copy")
    copy = open_checkpoint(tmp_path / "copy")
    assert copy.fingerprint == checkpoints["base"].fingerprint
    assert len({c.fingerprint for c in checkpoints.values()}) == len(checkpoints)


def test_logit_scale_is_the_checkpoints_or_100(checkpoints):
    assert checkpoints["one layer"].logit_scale == pytest.approx(np.exp(2.6592))
    assert checkpoints["base"].logit_scale == 100.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_the_memory_limit_bounds_a_step(tmp_path):
    """Peak memory of a process: a step over 2,000 classes with a limit, then the same step without."""
    folder = tiny_clip(tmp_path / "clip", text_only=True, hidden_size=64, intermediate_size=256)
    code = f"""
import numpy, torch
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.prompt import initial_context, layout_context

from dspt.backbone.text import TextTower
torch.set_num_threads(1)
checkpoint = open_checkpoint({str(folder)!r})
letters = numpy.random.RandomState(0).choice(list("abcdefghijklmnopqrstuvwxyz"), (2000, 8))
layout = layout_context(checkpoint, ["".join(word) for word in letters])

def peak():
    # not ru_maxrss, which a process takes over from the one that started it
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

def step(limit):
    tower = TextTower(checkpoint, memory_limit=limit)
    context = initial_context(checkpoint, tower.embeddings, layout, 1).requires_grad_()
    tower.compile(layout)(context).square().sum().backward()
    return context.grad

step(1)  # whatever the first step brings in is not counted
before = peak()
step(8 * 2**20)
limited = peak() - before
step(2**40)
print(limited, peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limited, unlimited = map(float, done.stdout.split())
    assert unlimited > 200, "the step must need memory for the comparison to say anything"
    # beside the activations there are the embeddings of all positions, what the allocator does not give back, and
    # where weights are packed the kernels that oneDNN makes for each number of rows, half a megabyte each
    assert limited < 8 + 40 + 30
