# Without a sanitizer tests/run.sh runs every test whose label has no `long`; under ASan and TSan
# tests/run.sh --sanitized runs the tests listed here. --all runs every test that is built under each. ASan always
# includes the fuzzer corpora.
#
# ASan and UBSan: parsers of untrusted files and text, the plugin boundary, and what computes indices
# into pages and columns.
set(specd_asan_targets
  core_base_test core_chat_test core_device_test core_draft_test core_files_test core_kv_test
  core_model_test core_nth_failure_test core_plugin_test core_ranks_test core_request_test
  core_services_nth_failure_test core_services_test core_spec_test core_step_test core_text_test
  plugins_test suffix_test sdk_test
  specd_config_nth_failure_test specd_host_test specd_http_test)
# TSan: code that starts or shares threads. Of host what needs no gRPC, which is not built for TSan.
set(specd_tsan_targets core_base_test core_device_test core_engine_test core_plugin_test core_ranks_test core_services_test core_text_test
  kernels_test specd_http_test specd_session_test suffix_test)
if(SPECD_FAILPOINTS)
  list(APPEND specd_asan_targets core_failpoints_test)
endif()

# Tests of these targets that only --all runs under the sanitizer: long computations without
# untrusted input (ASan), or tests that differ from others only in what one thread computes (TSan).
set(specd_asan_skips Rows.* Jinja.no_work_that_a_template_asks_for_is_free Json.values_are_counted_so_*
  Lookahead.memory_stays_* PromptLookup.*_as_the_oracle_says Checkpoints/Quantized.bits_*)
set(specd_tsan_skips IdentityMatrix.recorded_* IdentityMatrix.two_ranks_* Ranks.trained_* Identity.no_* Identity.trees_* Identity.an_unusable_*
  Identity.acceptance_* Heads.*_everywhere ZooHeads*.* *HeadsFullProduct.* *.no_setting_changes_a_token
  Beside.guarded_drafters_change_* Beside.a_shadow_accepts_* Process.drafters_change_* Process.a_shadow_accepts_*
  Untrained.a_prompt_of_one_token_* Verifiers.follow_* Verifiers.rejection_accepts_*
  Families/FamilyMatrix.* FamilyEngineOnce.a_sentencepiece_* Cpu/Attention.a_window_* Cpu/Attention.is_near_*
  Cpu/Attention.one_swapped_*
  Cpu/Draw.* Cpu/Math.* Cpu/Codes.a_code_* Cpu/Codes.another_* Cpu/Codes.are_near_* Cpu/Codes.every_* Cpu/Codes.the_largest_*
  CodesAmx.the_largest_* Cpu/*.*/scalar Cpu/*.*/avx512)

# Tests of hostile input, which matter under ASan: only --all runs them elsewhere too.
set(specd_asan_alone DamagedFiles.* HostileConfig.shipped_files_with_any_byte_*
  NthFailure.of_allocations_leaves_* SessionOracleTest.* TokenizerLoad.a_file_with_any_byte_*)

# Tests that only --all runs.
set(specd_long HostileConfig.shipped_files_with_every_sign_* ZooHeadsSettings.*
  Formats/QuantizedMatrix.*/fp8)

# specd_discover_tests(target [FILTER filter] ...): gtest_discover_tests, with a label that names the
# sanitizers: asan, tsan or asan_tsan (CMake cannot pass a list of labels here; ctest -L takes any
# part).
function(specd_discover_tests target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TEST_PREFIX;FILTER" PROPERTIES)
  set(how DISCOVERY_TIMEOUT 60 TEST_PREFIX "${arg_TEST_PREFIX}" PROPERTIES TIMEOUT 1500 ${arg_PROPERTIES})
  set(labels "")
  set(skips "")
  foreach(sanitizer asan tsan)
    if(target IN_LIST specd_${sanitizer}_targets)
      list(APPEND labels ${sanitizer})
      list(APPEND skips ${specd_${sanitizer}_skips})
    endif()
  endforeach()
  if(NOT labels)
    gtest_discover_tests(${target} TEST_FILTER "${arg_FILTER}" ${how})
    return()
  endif()
  list(JOIN labels _ label)
  list(JOIN skips : skip)
  list(JOIN specd_asan_alone : alone)
  list(JOIN specd_long : long)
  if(arg_FILTER)  # GoogleTest cannot intersect it with the skipped ones
    gtest_discover_tests(${target} TEST_FILTER "${arg_FILTER}" ${how} LABELS ${label})
  elseif(NOT asan IN_LIST labels)
    gtest_discover_tests(${target} TEST_FILTER "-${skip}:${long}" ${how} LABELS ${label})
    gtest_discover_tests(${target} TEST_FILTER "${skip}-${long}" ${how})
    gtest_discover_tests(${target} TEST_FILTER "${long}" ${how} LABELS long)
  else()
    gtest_discover_tests(${target} TEST_FILTER "-${skip}:${alone}:${long}" ${how} LABELS ${label})
    gtest_discover_tests(${target} TEST_FILTER "${skip}" ${how})
    gtest_discover_tests(${target} TEST_FILTER "${long}" ${how} LABELS long)
    # COST: the longest start first, so that the last one does not run alone.
    gtest_discover_tests(${target} TEST_FILTER "${alone}" ${how} COST 100 LABELS asan_long)
  endif()
endfunction()

# Adds the targets asan_tests and tsan_tests, which build the tests with these labels. A listed name
# that is no target is an error, so that a renamed test is not lost.
function(specd_add_sanitized_targets)
  get_property(corpora GLOBAL PROPERTY specd_corpus_tests)
  list(APPEND specd_asan_targets ${corpora})
  set(sanitizers tsan)
  if(SPECD_HOST AND NOT SPECD_SANITIZE STREQUAL "thread")
    list(APPEND sanitizers asan)
  endif()
  foreach(sanitizer ${sanitizers})
    add_custom_target(${sanitizer}_tests)
    foreach(target ${specd_${sanitizer}_targets})
      if(NOT TARGET ${target})
        message(FATAL_ERROR "tests/sanitized.cmake: the list of ${sanitizer} names ${target}, which "
                            "is no target of this build; correct the name there")
      endif()
      add_dependencies(${sanitizer}_tests ${target})
    endforeach()
  endforeach()
endfunction()
