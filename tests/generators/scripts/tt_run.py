"""run.py with another server: arguments, specification, paths, environment and start by tt-inference-server's own code.

Without a checkout in TT_INFERENCE_SERVER it does the same for one model by itself, in the directory that it lies in.
"""

import os
import subprocess
import sys
from pathlib import Path

SERVER = [sys.executable, str(Path(__file__).with_name("tt_server.py")), os.environ["SERVICE_PORT"]]
MODEL = os.environ["MODEL"] = sys.argv[sys.argv.index("--model") + 1]


def start_by_upstream(checkout: str) -> None:
    sys.path.insert(0, checkout)
    import run
    from workflows import model_spec, run_local_server, setup_host
    from workflows.runtime_config import RuntimeConfig

    arguments = run.parse_arguments()
    spec, impl, engine = model_spec.get_runtime_model_spec(arguments.model, arguments.device)
    config = RuntimeConfig.from_args(arguments, impl=impl, engine=engine)
    setup = setup_host.SetupConfig(model_spec=spec, host_volume=arguments.host_volume, local_server=True)
    env = run_local_server.build_local_server_env(spec, config, "spec.json", setup)
    run_local_server.run_local_command(SERVER, env, "server", config, spec, "server.log")


def start_in_its_way() -> None:
    volume = sys.argv[sys.argv.index("--host-volume") + 1] if "--host-volume" in sys.argv else "persistent_volume"
    root = Path(__file__).parent / volume / f"volume_id_tt_transformers-{MODEL}-v0.9.0"
    env = {"CACHE_ROOT": str(root), "TT_CACHE_PATH": str(root / "tt_metal_cache" / f"cache_{MODEL}" / "N300")}
    with open("server.log", "w") as log:
        subprocess.Popen(SERVER, env=os.environ | env, stdout=log, stderr=log, start_new_session=True)


if __name__ == "__main__":
    if "TT_INFERENCE_SERVER" in os.environ:
        start_by_upstream(os.environ["TT_INFERENCE_SERVER"])
    else:
        start_in_its_way()
