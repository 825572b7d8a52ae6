"""A session server as it is usually built, to measure the gateway against: FastAPI, uvicorn and httpx on asyncio."""
