"""`python -m inferscale_vllm` is `inferscale-vllm`: for environments whose scripts are not on the PATH."""

from .launch import main

raise SystemExit(main())
