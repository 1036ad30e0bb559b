"""The two doors of the command, for the tests beside this one."""

from tests.contract.harness import WELL, Place

WRITES = """
    cache = Path(sys.argv[1])
    cache.mkdir(exist_ok=True)
    (cache / "a.bin").write_bytes(b"x" * 50_000)
"""


def test_exec_of_a_generator_that_writes_and_ends_well_is_completed(place: Place) -> None:
    ran = place.exec(*WELL, command=[*place.program(WRITES), place.cache])
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.stderr
    assert ran.report["growth"]["bytes_present"] == 50_000


def test_generate_publishes_what_was_written_and_a_second_run_takes_it(place: Place) -> None:
    command = [*place.program(WRITES), "{cache_dir}"]
    ran = place.generate(*WELL, "--key", "revision=1", command=command)
    assert ran.status == 0, ran.stderr
    current = place.current()
    assert current is not None
    assert [file.name for file in current.iterdir() if file.suffix] == ["a.bin"]
    assert place.generate(*WELL, "--key", "revision=1", command=command).status == 0
    assert [build for build in (place.store / "model" / "builds").iterdir() if build.is_dir()] == [current.resolve()]
