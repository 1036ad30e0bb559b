"""The store's pure rules: names, key, manifest, checks, suspects, retention, the way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prefect_cachewatch.errors import BuildDamaged
from prefect_cachewatch.store.builds import BuildInfo
from prefect_cachewatch.store.checks import find_suspects
from prefect_cachewatch.store.collection import plan_collection
from prefect_cachewatch.store.key import BuildRecipe
from prefect_cachewatch.store.layout import check_build_id, make_build_id
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.records import FileEntry, LinkEntry, Manifest, decode_manifest, encode_manifest
from prefect_cachewatch.store.tree import ScannedFile

# -- names and key


@given(st.floats(0, 4e9), st.floats(0, 4e9), st.binary(min_size=4, max_size=4))
def test_build_ids_sort_by_age(early, late, entropy):
    early, late = sorted((early, late))
    assert make_build_id(early, entropy)[:19] <= make_build_id(late, entropy)[:19]
    assert check_build_id(make_build_id(early, entropy))


def test_the_key_depends_on_every_part_and_not_on_the_order_of_the_values():
    command, values = ("gen", "{cache_dir}"), {"a": "1", "b": "2"}
    base = BuildRecipe(command, values).key
    assert base == BuildRecipe(command, {"b": "2", "a": "1"}).key
    other_inputs = [(command, {"a": "1"}), ((*command, "x"), values), (("gen {cache_dir}",), values)]
    assert len({base, *(BuildRecipe(*inputs).key for inputs in other_inputs)}) == 4


def test_a_number_from_python_and_from_the_command_line_make_one_key():
    policy = PublishPolicy(store="/store", cache_key={"layers": 8, "tiled": True})
    assert policy.cache_key == {"layers": "8", "tiled": "true"}


# -- policy


@pytest.mark.parametrize(
    "fields",
    [
        {"store": None},
        {"store": "relative/path"},
        {"store": "/s", "keep": 0},
        {"store": "/s", "check_command": []},
        {"store": "/s", "key_env": ["not a name"]},
        {"store": "/s", "ignore": [""]},
        {"store": "/s", "unknown": 1},
    ],
)
def test_a_policy_out_of_bounds_is_refused(fields):
    with pytest.raises(ValidationError):
        PublishPolicy(**fields)


def test_every_field_of_the_policy_explains_itself_in_the_form():
    assert all(field.description for field in PublishPolicy.model_fields.values())


# -- manifest

PATHS = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20).filter(lambda p: p not in (".", ".."))
ENTRIES = st.lists(
    st.builds(FileEntry, PATHS, st.integers(0, 2**60), st.sampled_from(["0" * 64, "9f" * 32])), max_size=5
)


def manifest(files=(), **fields):
    base = {
        "name": "c", "build_id": "b", "key": "k", "cache_key": {"x": "1"}, "argv": ("gen",),
        "tool_versions": {}, "host": {"hostname": "h"}, "started_at": "s", "finished_at": "f",
    }  # fmt: skip
    return Manifest(files=tuple(files), **{**base, **fields})


@given(ENTRIES, st.lists(st.text(max_size=9), max_size=3))
def test_a_manifest_reads_back_as_it_was_written(entries, argv):
    written = manifest(
        entries, argv=tuple(argv), links=(LinkEntry("l", "a"),), growth={"bytes_written": 5, "pause_s": 0.1}
    )
    assert decode_manifest(encode_manifest(written), "m") == written


SAMPLE = encode_manifest(manifest([FileEntry("a/b.bin", 12, "ab" * 32), FileEntry("c", 3, "cd" * 32)]))


@pytest.mark.parametrize("length", range(0, len(SAMPLE) - 2, 7))
def test_a_manifest_cut_anywhere_is_refused(length):
    with pytest.raises(BuildDamaged, match="was cut short, or changed"):
        decode_manifest(SAMPLE[:length], "/s/m.json")


@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255))
def test_a_manifest_with_any_byte_changed_is_refused_or_means_the_same(place, difference):
    edited = SAMPLE[:place] + bytes([SAMPLE[place] ^ difference]) + SAMPLE[place + 1 :]
    try:
        read = decode_manifest(edited, "m")
    except BuildDamaged:
        return
    assert read == decode_manifest(SAMPLE, "m")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/./b", "", "a\0b"])
def test_a_manifest_that_names_a_path_outside_the_build_is_refused(path):
    forged = encode_manifest(manifest([FileEntry(path, 1, "0" * 64)]))
    with pytest.raises(BuildDamaged, match="makes no sense"):
        decode_manifest(forged, "m")


# -- suspects


def suspects(files, grew_after_s=None, **fields):
    known = None if grew_after_s is None else int(grew_after_s * 1e9)
    found = find_suspects(files, grew_after_ns=known, **fields)
    return {suspect.path: suspect.reason for suspect in found}


def changed(path, changed_s, mtime_s=None, size=10):
    """A file by its change time; its modification time is whatever the generator liked."""
    mtime_ns = int((changed_s if mtime_s is None else mtime_s) * 1e9)
    return ScannedFile(path, size, mtime_ns, hash(path), 1, int(changed_s * 1e9))


def test_a_marker_that_vouches_for_a_file_that_goes_goes_too():
    markers = [changed(f"{at}.weights_complete.none", 1) for at in ("", "n300/", "n300/layer/", "t3k/")]
    markers += [changed("n300/TT_METAL_CACHE_COMPLETED", 1), changed("n300/.host_weights.pt", 1)]
    files = [*markers, changed("n300/layer/a.tensorbin", 30), changed("t3k/b.tensorbin", 10), changed("t3k/c.tmp.7", 2)]
    gone = suspects(files, grew_after_s=29)
    assert gone.pop("n300/layer/a.tensorbin") == "changed_in_window"
    assert gone.pop("t3k/c.tmp.7") == "temporary"  # no marker lists it
    vouching = (".weights_complete.none", "n300/.weights_complete.none", "n300/layer/.weights_complete.none")
    assert gone == dict.fromkeys((*vouching, "n300/TT_METAL_CACHE_COMPLETED"), "marker")
    others = [*markers, changed("n300/layer/a.tensorbin", 10), changed("t3k/b.tensorbin", 30)]
    assert set(suspects(others, grew_after_s=29)) == {
        ".weights_complete.none",
        "t3k/.weights_complete.none",
        "t3k/b.tensorbin",
    }


FAR = 4e10  # a date after 2262 does not fit into the 64 bits of nanoseconds that some tools use


@pytest.mark.parametrize(
    ("mtimes", "what"),
    [
        ((10, 20, 30), "as they were written"),
        ((30, 20, 10), "the other way round"),
        ((99, 99, 1), "the cut one from 1970"),
        ((FAR, 5, -5), "after 2262 and before 1970"),
        ((0, 0, 0), "all alike, as from an archive"),
    ],
)
def test_a_file_that_changed_since_the_last_growth_is_suspect_whatever_date_the_generator_gave_it(mtimes, what):
    files = [changed(name, at, mtime) for name, at, mtime in zip("abc", (10, 20, 30), mtimes, strict=True)]
    assert suspects(files, grew_after_s=29) == {"c": "changed_in_window"}, what
    assert suspects(files, grew_after_s=29, window_s=9) == {"b": "changed_in_window", "c": "changed_in_window"}
    assert suspects(files, grew_after_s=29, window_s=300) == dict.fromkeys("abc", "changed_in_window")


def test_who_touches_one_file_after_the_end_makes_no_cut_one_whole():
    files = [changed("whole", 10), changed("cut", 1000), changed("touched", 99_999)]
    assert suspects(files, grew_after_s=995, window_s=300) == dict.fromkeys(["cut", "touched"], "changed_in_window")


def test_the_file_that_changed_last_is_suspect_even_before_the_growth_that_was_noted():
    assert suspects([changed("a", 10), changed("b", 20)], grew_after_s=25) == {"b": "changed_in_window"}


# -- retention


def build(name, state, pinned=False, left_ns=0, status=None):
    return BuildInfo(name, state, "/s", pinned=pinned, left_ns=left_ns, status=status)


def removed(builds, keep=2, keep_quarantined=1, young=frozenset()):
    reasons = plan_collection(builds, young, keep=keep, keep_quarantined=keep_quarantined)
    return {one.build_id for one, reason in zip(builds, reasons, strict=True) if reason == "surplus"}


STATES = st.sampled_from(["published", "staging", "abandoned", "damaged", "quarantined"])
BUILDS = st.lists(
    st.builds(build, st.text("abcdef", min_size=3, max_size=5), STATES, st.booleans(), st.integers(0, 9)),
    max_size=12, unique_by=lambda each: each.build_id,
)  # fmt: skip


@given(BUILDS, st.integers(1, 5), st.integers(0, 3), st.data())
def test_clean_up_never_touches_what_is_in_use(builds, keep, keep_quarantined, draw):
    young = {each.build_id for each in builds if draw.draw(st.booleans())}
    gone = removed(builds, keep, keep_quarantined, young)
    for each in builds:
        if each.pinned or each.state in ("staging", "damaged", "active") or each.build_id in young:
            assert each.build_id not in gone
    whole = [each.build_id for each in builds if each.state == "published"]
    assert len([each for each in whole if each not in gone]) >= min(keep, len(whole))
