# The example in README must be the file that the tests build.
file(READ ${README} readme)
file(READ ${CODE} code)
string(FIND "${readme}" "${code}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${README} does not show ${CODE} as it is")
endif()
