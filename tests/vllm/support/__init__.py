"""What the tests of vLLM stand on: servers, an HTTP client, engines in this process, small models of every shape."""
