"""The pytest fixtures that the installed SDK brings to a plugin's tests.

pytest imports this module in every run of an environment that has the SDK, so that it imports
nothing heavy: no numpy, no pydantic.
"""

from __future__ import annotations

import pluggy
import pytest

from verl_reward_sdk import hookspecs


@pytest.fixture
def empty_plugin_manager() -> pluggy.PluginManager:
    """A plugin manager that knows verl-reward's hooks and holds no plugin.

    No entry point is read, so that a test sees the plugins it registers and no other, whatever is
    installed::

        def test_it_offers_keywords(empty_plugin_manager):
            empty_plugin_manager.register(verl_reward_keywords)
            [classes] = empty_plugin_manager.hook.verl_reward_providers()
            assert [cls.name for cls in classes] == ["keywords"]
    """
    manager = pluggy.PluginManager("verl_reward")
    manager.add_hookspecs(hookspecs)
    return manager
