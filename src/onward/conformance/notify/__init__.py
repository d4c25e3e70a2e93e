"""The notify conformance suite: what every adapter that carries hints must do, as tests.

Write a test module that imports the tests and provides a fixture:

    # conftest.py: let pytest explain the assertions of the suite, before it is imported
    pytest.register_assert_rewrite("onward.conformance")

    # test_my_notify.py
    from onward.conformance.notify.suite import *

    @pytest.fixture
    async def connect():
        '''Opens one more adapter on the same broker with each call, as another process would have it.'''
        async with AsyncExitStack() as stack:
            async def open_one():
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                notify = MyNotify("…")
                await notify.open(tasks)
                stack.push_async_callback(notify.close)
                return notify
            yield open_one

Where processes share the wake-ups for ready jobs, import `onward.conformance.notify.budgets` too.
"""
