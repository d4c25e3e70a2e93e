"""The state conformance suite: what every database adapter and driver must do, as tests.

Write a test module that imports the tests and provides two fixtures:

    # conftest.py: let pytest explain the assertions of the suite, before it is imported
    pytest.register_assert_rewrite("onward.conformance")

    # test_my_driver.py
    from onward.conformance.state.store import Store
    from onward.conformance.state.suite import *

    @pytest.fixture
    async def store():
        '''Onward's tables, all empty.'''
        driver = MyDriver("…")
        await driver.open()
        yield Store(state=PostgresState(schema="test"), driver=driver)
        await driver.close()

    @pytest.fixture
    async def empty_store():
        '''The same where no tables are yet.'''

Where several transactions can write at a time, import `onward.conformance.state.locking` too.
Time is moved (`store.clock.advance(…)`), never slept.
"""
