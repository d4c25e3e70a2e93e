"""The queue conformance suite: what every provider must do, and a proof of each capability that it declares.

Nothing is skipped: where a capability is not declared, the test proves that the option is dropped with one warning or
that the method is refused. Write a test module that imports the tests and provides two fixtures:

    # conftest.py: let pytest explain the assertions of the suite, before it is imported
    pytest.register_assert_rewrite("onward.conformance")

    # test_my_provider.py
    from onward.conformance.queue.suite import *

    @pytest.fixture
    def queue_name():
        '''A queue of this test's own.'''
        return f"test-{secrets.token_hex(4)}"

    @pytest.fixture
    def make_factory():
        '''Makes one more factory on the same backend with each call, as another process would have it.'''

        def make(brief=False):
            '''A brief one has leases of a second and keeps the three newest jobs that completed, and failed.'''
            return MyProvider("…", lease=…, keep_completed=…) if brief else MyProvider("…")

        return make

A backend whose retry policy belongs to the whole queue is set up with three attempts.
"""
