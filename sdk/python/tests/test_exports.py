import inspect

import agent_sandbox


def test_all_is_exactly_what_is_public() -> None:
    public = {
        name
        for name, value in vars(agent_sandbox).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert sorted(agent_sandbox.__all__) == sorted(public | {"__version__"})


def test_every_error_is_a_sandbox_error_and_drawn_in_the_tree() -> None:
    tree = agent_sandbox._errors.__doc__ or ""
    for name in agent_sandbox.__all__:
        value = getattr(agent_sandbox, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, agent_sandbox.SandboxError)
            assert name in tree


def test_the_builtin_errors_catch_ours() -> None:
    assert issubclass(agent_sandbox.FileNotFound, FileNotFoundError)
    assert issubclass(agent_sandbox.FileAccessDenied, PermissionError)
