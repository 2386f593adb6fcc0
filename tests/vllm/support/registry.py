"""Models' classes, registered before vLLM looks for them by name: it would do so in a process of its own, which imports vLLM once more (10 s of
work for each kind of model on a machine that has not seen it)."""
import json
import os


def know(model):
    """model: the folder of the model that is about to be loaded in this process."""
    from vllm.model_executor.models.registry import ModelRegistry

    with open(os.path.join(str(model), "config.json"), encoding="utf-8") as f:
        for name in json.load(f)["architectures"]:
            entry = ModelRegistry.models.get(name)
            if entry is not None and hasattr(entry, "module_name"):
                ModelRegistry.register_model(name, entry.load_model_cls())
