"""Routes that have the engine's next steps profiled, where the server was started with `--profile DIR`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel

from octavo.engine.profile import ProfileSettings
from octavo.errors import InvalidRequest
from octavo.server.errors import HttpError
from octavo.server.state import ServerState, state_of

router = APIRouter()


class ProfileStarted(BaseModel):
    """The next `steps` steps are profiled; after them the trace is written to `directory`."""

    directory: str
    steps: int


class ProfileWritten(BaseModel):
    """A Chrome trace of `steps` steps lies at `path`, on the server's machine; null if there were none."""

    path: str | None
    steps: int


@router.post("/start_profile")
async def start_profile(request: Request) -> ProfileStarted:
    """Profile the engine's next steps. Takes no body. 409 if that is being done already."""
    state = state_of(request)
    settings = _settings(state)
    state.ready_model()
    try:
        await state.engine.start_profile(settings)
    except InvalidRequest as error:
        raise HttpError(409, f"{error}: POST /stop_profile", code="profile_running") from error
    return ProfileStarted(directory=str(settings.directory), steps=settings.num_steps)


@router.post("/stop_profile")
async def stop_profile(request: Request) -> ProfileWritten:
    """End the profile, unless it has ended by itself, and tell where it is. Takes no body. 409 without a start."""
    state = state_of(request)
    _settings(state)
    state.ready_model()
    profile = await state.engine.stop_profile()
    if profile is None:
        raise HttpError(409, "no profile was started; POST /start_profile first", code="no_profile")
    if profile.error is not None:
        raise HttpError(500, profile.error, type="server_error", code="profile_failed")
    return ProfileWritten(path=profile.path, steps=profile.steps)


def _settings(state: ServerState) -> ProfileSettings:
    if state.settings.profiles is None:
        raise HttpError(404, "this server was started without --profile DIR", code="not_found")
    return state.settings.profiles
