"""An executable specification of inference: every operation in NumPy that a person can read.

``CONTENTS`` is the table of contents, the reading order and the import law at once:
a module imports only modules that stand above it. ``HOUR`` is the path for one hour: the mathematics of a language
model. The rest is files, and what can be wrong with them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refimpl.model import load

__all__ = ["CONTENTS", "HOUR", "__version__", "load"]

__version__ = "0.1.0"

CONTENTS = (
    ("contract", "roles, array types, errors, the dimension key"),
    ("basics.linear", "y = x w^T + b"),
    ("basics.activation", "softmax and its kin; relu, sigmoid, softplus, silu, the three GELUs"),
    ("basics.gated", "one projection as the gate of another: swiglu, geglu, gpt-oss's clamped form"),
    ("basics.norm", "layer norm and RMS norm"),
    ("basics.conv", "convolutions over tokens and images, forth and back; nearest-neighbour upsampling"),
    ("basics.training", "the training cycle: loss, its gradient, backward through an MLP, the step"),
    ("llm.embedding", "token ids to vectors"),
    ("llm.rope_scaling", "how far each pair of a rotary embedding turns: linear, dynamic, YaRN, llama3, longrope"),
    ("llm.position", "rotary embedding; learned and sinusoidal positions"),
    ("llm.position_bias", "positions as a bias of scores: ALiBi, T5"),
    ("llm.attention", "one function for multi-head, grouped and multi-query attention"),
    ("llm.kv_cache", "keys and values of one sequence, kept contiguously"),
    ("llm.cache_forms", "a cache that is a ring, and a cache of 8-bit codes"),
    ("llm.mlp", "the feed-forward network, plain and gated"),
    ("llm.router", "to which experts each token goes, and with what weight"),
    ("llm.experts", "tokens sorted by expert; linear maps over a stack of matrices"),
    ("llm.moe", "mixtures of experts: dense, grouped for prefill, indexed for decode"),
    ("llm.rng", "counter-based random numbers: Philox 4x32-10"),
    ("llm.penalties", "changes of single logits: repetition, presence, frequency, bias"),
    ("llm.bans", "banned, favoured and forced tokens and sequences; how long the text gets"),
    ("llm.cuts", "temperature, top-k, top-p, min-p, greedy"),
    ("llm.tail_cuts", "typical, epsilon and eta cutoff, top-n-sigma, top-h"),
    ("llm.sampler", "from logits to a token; the chain of steps is data"),
    ("blocks", "where the bits of quantised weights lie in GGUF files"),
    ("llm.block_writers", "weights rounded into those blocks"),
    ("llm.narrow_floats", "numbers of few bits beside their scales: int8 by rows, fp8 by blocks"),
    ("llm.fp4", "MXFP4 and NVFP4"),
    ("llm.quantize", "quantised weights read, or multiplied with int8 activations"),
    ("llm.generate", "prefill, decode, stop; text as it becomes whole"),
    ("llm.speculative", "several tokens from one pass: drafts, and which of them stay"),
    ("media.plan", "where a solver stops on its way from noise to a picture"),
    ("media.noise_schedule", "how much noise there is at each training step"),
    ("media.sigmas", "noise levels between the largest and the smallest; those of straight flows"),
    ("media.prediction", "what a denoiser's output says: epsilon, v, sample, flow"),
    ("media.guidance", "away from what the model says without a prompt"),
    ("media.step", "what solvers do to arrays: sums with weights"),
    ("media.euler", "first order: Euler, ancestral, EDM, flow"),
    ("media.heun", "second order: Heun, KDPM2"),
    ("media.lms", "linear multistep"),
    ("media.ddpm", "over training steps: DDPM, DDIM"),
    ("media.pndm", "over training steps, with mixed outputs"),
    ("media.few_step", "a picture in few steps: consistency models, LCM, TCD"),
    ("media.dpm", "exponential integrators: DPM-Solver and ++, multistep"),
    ("media.dpm_singlestep", "exponential integrators that start anew: DPM-Solver and ++, singlestep"),
    ("media.deis", "exponential integrators in log(rho): DEIS"),
    ("media.unipc", "a predictor and a corrector over lambda: UniPC"),
    ("media.scheduler_plans", "where each class of scheduler stops"),
    ("media.scheduler", "scheduler_config.json: which solver each class is, and its keys"),
    ("media.timestep", "noise levels as a network reads them"),
    ("media.adaln", "norms and residuals that follow what a denoiser is told"),
    ("media.patch", "pictures and videos as tokens, and where these stand"),
    ("media.conv3d", "convolution over videos, causal in time, with a state"),
    ("media.unet", "blocks of convolutional networks: residual, attention, half and twice the size"),
    ("media.costs", "operations and bytes of every operation of images and video"),
    ("models.spec", "a decoder as data"),
    ("models.encoder_spec", "encoders and encoder-decoders as data"),
    ("models.tensor", "a weight as its file holds it"),
    ("bottleneck.roofline", "what a device can do at most; memory or arithmetic bounds"),
    ("bottleneck.cost", "operations and bytes of every operation, by its sizes"),
    ("bottleneck.serving", "parameters, memory and least times of a model on a device"),
    ("efficient.expert_load", "how evenly a router uses its experts"),
    ("efficient.flash", "attention tile by tile, with a running softmax"),
    ("efficient.allocator", "which blocks of a paged cache are held, and by how many"),
    ("efficient.prefix_sharing", "blocks found by their tokens, and copied before they are written"),
    ("efficient.paged", "the paged cache, and attention through its block tables"),
    ("models.quantization", "which ways of storing weights quantization_config may name"),
    ("models.config", "what the keys of a config.json mean"),
    ("models.encoder_reading", "what the configs of encoders have in common"),
    ("models.reading", "what the configs of most decoders share"),
    ("models.held", "weights read when they are asked for"),
    ("models.weights", "the tensors of a file, named and checked"),
    ("models.encoder_weights", "the tensors of a file as the weights of an encoder"),
    ("media.dit", "DiT: a transformer over the patches of a picture"),
    ("media.vae", "the autoencoder between pictures and latents"),
    ("media.causal_vae", "the autoencoder between videos and latents, causal in time"),
    ("media.video_dit", "a DiT over a whole video"),
    ("models.architecture", "what a family says about its GGUF files"),
    ("models.families", "config to spec, tensors to weights; a file for each family, found by its place"),
    ("models.gguf_names", "GGUF metadata as a config, GGUF tensors as weights"),
    ("models.published", "models that people know, by their configs; random weights"),
    ("models.layer", "one layer of a decoder, whatever its kind, run over a namespace of operations"),
    ("models.decoder", "a decoder run over a namespace of operations"),
    ("models.stack", "a stack of layers run over a namespace of operations"),
    ("models.encoder", "an encoder, and what its heads make of its states"),
    ("models.encoder_decoder", "a text read once, and answered token by token"),
    ("files.scales", "float8 and MXFP4 tensors joined with their scales"),
    ("files.checkpoint", "safetensors files and checkpoint folders"),
    ("files.gguf", "GGUF files"),
    ("files.vocabulary", "a tokenizer as models see it, whatever its kind"),
    ("files.pretokenizer", "text to words: the regular expressions"),
    ("files.bpe", "words to ids: byte-level BPE"),
    ("files.merges", "BPE by scores"),
    ("files.unigram", "the likeliest pieces of a text"),
    ("files.charsmap", "SentencePiece's normal form of a text"),
    ("files.sentencepiece", "SentencePiece's frame around its two models"),
    ("files.wordpiece", "BERT's words and their longest pieces"),
    ("files.library", "tokenizers of every other kind, by an extra"),
    ("files.sentencepiece_model", "SentencePiece's own files"),
    ("files.tokenizer_gguf", "tokenizers of GGUF files"),
    ("files.tokenizer_plain", "tokenizers of folders without a tokenizer.json"),
    ("files.tokenizer_json", "tokenizers of folders with one"),
    ("files.tokenizer", "the door to both"),
    ("files.sandbox", "where templates run, kept in and kept short"),
    ("files.chat", "chat templates, in a sandbox"),
    ("files.sentence", "how a folder says that texts become vectors"),
    ("files.hub", "where a model is found: folder, file, hub, the default model"),
    ("media.operations", "the operations that solvers and denoisers are composed of, in one namespace"),
    ("media.trajectory", "a whole way with a model that needs no weights: what a scheduler is judged by"),
    ("media.pipeline", "from a word to a picture: a folder opened, noise, steps, pixels"),
    ("operations", "the operations that a decoder is composed of, in one namespace"),
    ("encoder_model", "encoders, opened: states, vectors, guesses"),
    ("seq2seq_model", "encoder-decoders, opened"),
    ("perplexity", "how surprised a model is by a text"),
    ("sizes", "the sizes of a call, by the letters of its signature"),
    ("model", "open and load a model"),
    ("flags", "the values that flags take, and what they mean"),
    ("interrupt", "Ctrl-C while a model answers"),
    ("command", "what the commands share: flags, and how a run ends"),
    ("run", "python -m refimpl.run: plain generation"),
    ("models.__main__", "python -m refimpl.models: the table of families"),
    ("__main__", "python -m refimpl: this table"),
)

_ROOMS = ("contract", "blocks", "basics", "llm", "bottleneck")
_MORE = ("models.spec", "models.layer", "models.decoder")
_LATER = ("basics.conv", "llm.position_bias", "llm.cache_forms", "llm.block_writers", "llm.narrow_floats", "llm.fp4")
HOUR = tuple(
    name for name, _ in CONTENTS if (name.split(".")[0] in _ROOMS or name in _MORE) and name not in _LATER
)
"""The modules of the hour, in reading order: sections 2.1, 2.2 and 2.4, but for convolutions, positions as a bias and
how numbers of few bits are made."""


def __getattr__(name: str) -> Any:
    """Import tokenizers and templates when a model is wanted, not before."""
    if name != "load":
        raise AttributeError(f"module 'refimpl' has no attribute {name!r}")
    from refimpl.model import load

    return load
