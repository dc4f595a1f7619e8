"""Where settings come from, which one wins, and what a mistake in them says."""

from __future__ import annotations

import pytest

from npucoll import config
from npucoll.errors import ConfigError


def load(directory, env=None, **arguments):
    return config.load(directory, {} if env is None else env, **arguments)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_need_no_file(tmp_path):
    settings = load(tmp_path)
    assert settings == config.Config()
    assert settings.timeout == 1800
    assert settings.connect_timeout == 120


def test_file_is_found_upwards_and_origins_name_the_line(tmp_path):
    path = write(tmp_path / "npucoll.toml", '# ours\nmodes = ["keras"]\nengine = "native"\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    settings = load(below)
    assert settings.modes == ("keras",)
    assert settings.engine == "native"
    assert settings.origins["modes"] == f"{path}, line 2"


def test_nearest_file_wins(tmp_path):
    write(tmp_path / "npucoll.toml", "timeout = 1")
    below = tmp_path / "a"
    below.mkdir()
    write(below / "pyproject.toml", "[tool.npucoll]\ntimeout = 2")
    assert load(below).timeout == 2


def test_pyproject_of_others_is_passed_over_even_if_it_is_broken(tmp_path):
    write(tmp_path / "npucoll.toml", "timeout = 1")
    below = tmp_path / "a"
    below.mkdir()
    write(below / "pyproject.toml", "[tool.other\nbroken")
    assert load(below).timeout == 1


def test_environment_overrides_file_and_arguments_override_both(tmp_path):
    write(tmp_path / "npucoll.toml", 'timeout = 1\nengine = "a"\nmodes = ["x"]')
    env = {"NPUCOLL_TIMEOUT": "2.5", "NPUCOLL_ENGINE": "b", "NPUCOLL_MODES": "keras, tf1"}
    settings = load(tmp_path, env, engine="c", timeout=None)
    assert (settings.timeout, settings.engine, settings.modes) == (2.5, "c", ("keras", "tf1"))
    assert settings.origins["timeout"] == "NPUCOLL_TIMEOUT"


def test_adapter_variables_stand_below_ours(tmp_path):
    env = {"HCCL_EXEC_TIMEOUT": "7", "HCCL_CONNECT_TIMEOUT": "200"}
    assert load(tmp_path, env).timeout == 7
    assert load(tmp_path, env).connect_timeout == 200
    assert load(tmp_path, dict(env, NPUCOLL_TIMEOUT="9")).timeout == 9


def test_adapter_zero_timeout_means_a_day(tmp_path):
    assert load(tmp_path, {"HCCL_EXEC_TIMEOUT": "0"}).timeout == 86400


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("npucoll.toml", "\n# comment\ntimout = 3\n", 3),
        ("pyproject.toml", '[project]\nname = "x"\n[tool.npucoll]\nmodes = []\ntimout = 3\n', 5),
    ],
)
def test_unknown_key_names_file_line_and_nearest(tmp_path, name, text, line):
    path = write(tmp_path / name, text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert f"{path}, line {line}" in str(caught.value)
    assert "'timout'" in str(caught.value)
    assert "did you mean 'timeout'?" in str(caught.value)


def test_unknown_table_is_an_unknown_key(tmp_path):
    path = write(tmp_path / "npucoll.toml", "timeout = 3\n[plugins]\nkeras = true\n")
    with pytest.raises(ConfigError, match=r"line 2: unknown key 'plugins'; known keys: modes, engine") as caught:
        load(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", ["-1", "0", "true", '"soon"', "inf"])
def test_wrong_timeout_names_file_and_line(tmp_path, value):
    write(tmp_path / "npucoll.toml", f"timeout = {value}")
    with pytest.raises(ConfigError, match="npucoll.toml, line 1: timeout = .*number of seconds"):
        load(tmp_path)


@pytest.mark.parametrize("key", ["modes", "disable"])
def test_lists_take_names_only(tmp_path, key):
    write(tmp_path / "npucoll.toml", f"{key} = [1]")
    with pytest.raises(ConfigError, match="expected a list of names"):
        load(tmp_path)


def test_wrong_variable_is_named(tmp_path):
    with pytest.raises(ConfigError, match="NPUCOLL_TIMEOUT: timeout = 'soon'"):
        load(tmp_path, {"NPUCOLL_TIMEOUT": "soon"})


def test_misspelt_variable_is_refused_and_others_are_left_alone(tmp_path):
    with pytest.raises(ConfigError, match="unknown variable NPUCOLL_TIMOUT; did you mean NPUCOLL_TIMEOUT"):
        load(tmp_path, {"NPUCOLL_TIMOUT": "3"})
    load(tmp_path, {"NPUCOLL_RANK": "0", "NPUCOLL_SIZE": "1", "NPUCOLL_SOMETHING_ELSE": "x"})


def test_unknown_argument_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown argument 'tmeout'; did you mean 'timeout'"):
        load(tmp_path, tmeout=3)


def test_broken_toml_names_the_file(tmp_path):
    path = write(tmp_path / "npucoll.toml", "timeout = = 3")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert str(path) in str(caught.value)


def test_variable_names_the_file(tmp_path):
    path = write(tmp_path / "other.toml", "timeout = 5")
    assert load(tmp_path, {"NPUCOLL_CONFIG": str(path)}).timeout == 5
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        load(tmp_path, {"NPUCOLL_CONFIG": str(tmp_path / "nowhere.toml")})
