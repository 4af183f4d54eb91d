from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: F401
