"""The two versions a plugin can depend on."""

__version__ = "0.1.0"

#: The plugin API that this SDK speaks. A plugin declares the one it was written for as a literal
#: in its module, ``VERL_REWARD_API = 1``; the loader refuses another number before it calls a hook.
PLUGIN_API_VERSION = 1
