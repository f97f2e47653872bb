"""Every rank prints who it is; rank 0 also prints the thirteen facts that each rank knows about itself."""

import rollcall

with rollcall.init() as world:
    info = world.info
    print(f"rank {world.rank} of {world.size} is here: pid {info.process_id} on {info.hostname}, {info.backend}")
    world.barrier()
    if world.is_first:
        print(info.model_dump_json(indent=4))
