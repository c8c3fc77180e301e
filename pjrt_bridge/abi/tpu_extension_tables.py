"""PJRT extensions of TPUs and of programs on several slices, as text.

The notation is that of `pjrt_bridge.abi.extension_tables`.

Source: the public headers pjrt_c_api_*_extension.h of API 0.114. Sizes were compared with the chain
of a plugin that states API 0.117. Three structs are longer there than in any public header, so
their last fields are not declared: TpuTopology (280 bytes), TpuExecutable (96) and Megascale (248).
"""

STRUCTS = """
PJRT_Megascale_ProcessesInfo: ptr addresses, ptr address_sizes, size num_addresses, ptr
    slice_indexes, size num_slice_indexes, ptr per_slice_indexes, size num_per_slice_indexes, i32
    num_devices_per_process
"""
"""Structs that args structs point to."""

EXTENSIONS = """
TpuTopology 16 (v1) PJRT_TpuTopology_Extension
subslice PJRT_TpuTopology_Subslice_Args: sized, ptr topology, ptr chips_per_host_bounds, size
    chips_per_host_bounds_num_dims, ptr host_bounds, size host_bounds_num_dims, out ptr
    subslice_topology
is_subslice_topology PJRT_TpuTopology_IsSubsliceTopology_Args: sized, ptr topology, out bool
    is_subslice_topology
subslice_device_id_from_full_device_id PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args:
    sized, ptr client_topology, ptr subslice_topology, ptr subslice_origin, size
    subslice_origin_dim_num, i32 full_device_id, out i32 subslice_device_id
replace_host_bounds PJRT_TpuTopology_ReplaceHostBounds_Args: sized, ptr topology, ptr host_bounds,
    size host_bounds_dim_num, out ptr new_topology
is_enhanced_barrier_enabled PJRT_TpuTopology_IsEnhancedBarrierEnabled_Args: sized, ptr topology, out
    bool is_enhanced_barrier_enabled
has_limited_ici_connectivity PJRT_TpuTopology_HasLimitedIciConnectivity_Args: sized, ptr topology,
    out bool has_limited_ici_connectivity
is_reachable_over_limited_ici PJRT_TpuTopology_IsReachableOverLimitedIci_Args: sized, ptr topology,
    i32 source_chip_id, i32 dest_chip_id, out bool is_reachable_over_limited_ici
process_count PJRT_TpuTopology_ProcessCount_Args: sized, ptr topology, out i32 process_count
chips_per_process PJRT_TpuTopology_ChipsPerProcess_Args: sized, ptr topology, out i32
    chips_per_process
core_count_per_chip PJRT_TpuTopology_CoreCountPerChip_Args: sized, ptr topology, out i32
    core_count_of_default_type_per_chip
chip_count PJRT_TpuTopology_ChipCount_Args: sized, ptr topology, out i32 chip_count
core_count PJRT_TpuTopology_CoreCount_Args: sized, ptr topology, out i32 core_count_of_default_type
logical_device_count_per_process PJRT_TpuTopology_LogiDeviceCountPerProcess_Args: sized, ptr
    topology, out i32 logical_device_count_of_default_type_per_process
logical_device_count PJRT_TpuTopology_LogiDeviceCount_Args: sized, ptr topology, out i32
    logical_device_count_of_default_type
logical_device_count_per_chip PJRT_TpuTopology_LogiDeviceCountPerChip_Args: sized, ptr topology, out
    i32 logical_device_count_of_default_type_per_chip
core_count_per_process PJRT_TpuTopology_CoreCountPerProcess_Args: sized, ptr topology, out i32
    core_count_of_default_type_per_process
process_ids PJRT_TpuTopology_ProcessIds_Args: sized, ptr topology, i32 max_process_ids, ptr
    process_ids, out size num_process_ids
logical_device_ids_on_process PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args: sized, ptr topology, i32
    process_id, i32 max_logical_device_ids, ptr logical_device_of_default_type_ids, out size
    num_logical_device_ids
proc_id_and_idx_on_proc_for_chip PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args: sized, ptr
    topology, i32 chip_id, out i32 process_id, out i32 index_on_process
proc_id_and_idx_on_proc_for_logi_device PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args:
    sized, ptr topology, i32 device_id, out i32 process_id, out i32 index_on_process
process_coord_from_id PJRT_TpuTopology_ProcessCoordFromId_Args: sized, ptr topology, i32 process_id,
    size coords_max_dims, ptr coords, out size coords_num_dims
chip_id_from_coord PJRT_TpuTopology_ChipIdFromCoord_Args: sized, ptr topology, ptr coords, size
    coords_num_dims, out i32 chip_id
logical_device_id_from_chip_coord_and_idx PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args:
    sized, ptr topology, ptr chip_coords, size chip_coords_num_dims, i32
    logical_device_index_on_chip, out i32 logical_device_of_default_type_id
chip_coord_and_idx_for_logi_device PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args: sized, ptr
    topology, i32 device_id, size chip_coords_max_dims, ptr chip_coords, out size
    chip_coords_num_dims, out i32 device_index_on_chip
chips_per_process_bounds PJRT_TpuTopology_ChipsPerProcessBounds_Args: sized, ptr topology, size
    chip_per_process_bounds_max_dims, ptr chip_per_process_bounds, out size
    chip_per_process_bounds_num_dims
chip_bounds PJRT_TpuTopology_ChipBounds_Args: sized, ptr topology, size chip_bounds_max_dims, ptr
    chip_bounds, out size chip_bounds_num_dims
process_bounds PJRT_TpuTopology_ProcessBounds_Args: sized, ptr topology, size
    process_bounds_max_dims, ptr process_bounds, out size process_bounds_num_dims
get_routing_strategy PJRT_TpuTopology_GetRoutingStrategy_Args: sized, ptr topology, ptr
    routing_strategy, size routing_strategy_len
get_slice_config PJRT_TpuTopology_GetSliceConfig_Args: sized, ptr platform_type_name, size
    platform_type_name_len, ptr slice_name, size slice_name_len, ptr slice_config
get_slice_configs PJRT_TpuTopology_GetSliceConfigs_Args: sized, ptr platform_type_name, size
    platform_type_name_len, ptr slice_configs, size max_slice_configs, out size num_slice_configs
get_default_platform_config PJRT_TpuTopology_GetDefaultPlatformConfig_Args: sized, ptr
    platform_type_name, size platform_type_name_len, out i64 num_chips_per_tray, out i64 num_trays

TpuExecutable 17 (v1) PJRT_TpuExecutable_Extension
get_target_arguments PJRT_TpuExecutable_GetTargetArguments_Args: sized, ptr serialized_executable,
    size serialized_executable_size, out ptr target_arguments, out size target_arguments_size, out
    ptr target_arguments_ptr, out fn target_arguments_deleter
get_hlo_module_with_config PJRT_TpuExecutable_GetHloModuleWithConfig_Args: sized, ptr
    serialized_executable, size serialized_executable_size, out ptr hlo_module_with_config, out size
    hlo_module_with_config_size, out ptr hlo_module_with_config_ptr, out fn
    hlo_module_with_config_deleter
get_core_program_abi_version PJRT_TpuExecutable_GetCoreProgramAbiVersion_Args: sized, ptr
    serialized_executable, size serialized_executable_size, out ptr abi_version, out size
    abi_version_size, out ptr abi_version_ptr, out fn abi_version_deleter
get_compiled_memory_stats PJRT_TpuExecutable_GetCompiledMemoryStats_Args: sized, ptr
    serialized_executable, size serialized_executable_size, out ptr compiled_memory_stats, out size
    compiled_memory_stats_size, out ptr compiled_memory_stats_ptr, out fn
    compiled_memory_stats_deleter
run_hlo_cost_analysis PJRT_TpuExecutable_RunHloCostAnalysis_Args: sized, ptr target_arguments, size
    target_arguments_size, ptr hlo_module, ptr hlo_module_size, size num_hlo_modules, out ptr
    analysis_results, out size num_analysis_results, out ptr analysis_results_ptr, out fn
    analysis_results_deleter
set_tpu_compilation_env PJRT_TpuExecutable_SetTpuCompilationEnv_Args: sized, ptr
    serialized_compilation_environments, size serialized_compilation_environments_size, out ptr
    result_compilation_environments, out size result_compilation_environments_size, out ptr
    result_compilation_environments_ptr, out fn result_compilation_environments_deleter
get_tpu_compilation_env_field_as_string PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args:
    sized, ptr serialized_compilation_environments, size serialized_compilation_environments_size,
    ptr field_name, size field_name_size, out ptr field_value, out size field_value_size, out ptr
    field_value_ptr, out fn field_value_deleter

Megascale 18 (v1) PJRT_Megascale_Extension
create_client_context_from_pjrt_client PJRT_Megascale_CreateClientContextFromPjRtClient_Args: sized,
    ptr client, out ptr client_context
create_default_client_context PJRT_Megascale_CreateDefaultClientContext_Args: sized, out ptr
    client_context
delete_client_context PJRT_Megascale_DeleteClientContext_Args: sized, ptr client_context
create_aot_config PJRT_Megascale_CreateAoTConfig_Args: sized, ptr topology, i32 num_slices, out ptr
    multi_slice_config
create_multi_slice_config PJRT_Megascale_CreateMultiSliceConfig_Args: sized, ptr topology, i32
    num_slices, i32 local_slice_id, i32 local_host_id, ptr endpoint_addresses, i32
    endpoint_addresses_size, ptr dcn_topology, i32 dcn_topology_size, ptr client_context, out ptr
    multi_slice_config
delete_multi_slice_config -
multi_slice_config_num_slices -
multi_slice_config_slice_id -
multi_slice_config_get_num_devices_per_slice -
multi_slice_config_serialize -
client_context_initialize PJRT_Megascale_ClientContext_Initialize_Args: sized, ptr client_context
client_context_unblock_pending_work PJRT_Megascale_ClientContext_UnblockPendingWork_Args: sized, ptr
    client_context, i32 launch_id, i64 expire_after_ms
client_context_megascale_port PJRT_Megascale_ClientContext_MegascalePort_Args: sized, ptr
    client_context, out i32 port
create_megascale_collectives PJRT_Megascale_CreateMegascaleCollectives_Args: sized, ptr
    client_context, ptr processes_info, ptr dcn_topology, size dcn_topology_size, out ptr
    collectives
device_id_to_megascale_id PJRT_Megascale_DeviceId_To_MegascaleId_Args: sized, i32 slice_id, i32
    per_slice_device_id, out i64 megascale_id
megascale_id_to_device_id PJRT_Megascale_MegascaleId_To_DeviceId_Args: sized, i64 megascale_id, out
    i32 slice_id, out i32 per_slice_device_id
register_megascale_error_handler PJRT_Megascale_RegisterErrorHandler_Args: sized, ptr handler_name,
    size handler_name_size, fn handler, ptr user_data
unregister_megascale_error_handler PJRT_Megascale_UnregisterErrorHandler_Args: sized, ptr
    handler_name, size handler_name_size
error_aggregator_create PJRT_Megascale_ErrorAggregator_Create_Args: sized, ptr app_type, size
    app_type_size, out ptr aggregator
error_aggregator_delete PJRT_Megascale_ErrorAggregator_Delete_Args: sized, ptr aggregator
error_digest_delete PJRT_Megascale_ErrorDigest_Delete_Args: sized, ptr digest
error_aggregator_add_error PJRT_Megascale_ErrorAggregator_AddError_Args: sized, ptr aggregator, ptr
    worker_id, size worker_id_size, ptr serialized_error, size serialized_error_size
error_aggregator_process_and_shutdown PJRT_Megascale_ErrorAggregator_ProcessAndShutdown_Args: sized,
    ptr aggregator, out ptr digest
error_aggregator_log_error_digest PJRT_Megascale_ErrorAggregator_LogErrorDigest_Args: sized, ptr
    aggregator, ptr digest
error_aggregator_size PJRT_Megascale_ErrorAggregator_Size_Args: sized, ptr aggregator, out size size
error_aggregator_active PJRT_Megascale_ErrorAggregator_Active_Args: sized, ptr aggregator, out bool
    active
get_interface_addresses_helper PJRT_Megascale_GetInterfaceAddressesHelper_Args: sized, ptr
    megascale_port_name, size megascale_port_name_size, i32 megascale_port, ptr interface_prefixes,
    ptr interface_prefixes_sizes, size num_interface_prefixes, bool use_all_interfaces, bool
    limit_to_process_numa_local_interfaces, out ptr serialized_addresses, out ptr
    serialized_addresses_sizes, out size num_addresses, out ptr addresses, out fn addresses_deleter

MultiSlice 22 (v1) PJRT_MultiSlice_Extension
config_destroy PJRT_MultiSlice_Config_Destroy_Args: sized, ptr config
config_num_slices PJRT_MultiSlice_Config_NumSlices_Args: sized, ptr config, out i32 num_slices
config_slice_id PJRT_MultiSlice_Config_SliceId_Args: sized, ptr config, out i32 slice_id
config_num_devices_per_slice PJRT_MultiSlice_Config_NumDevicesPerSlice_Args: sized, ptr config, out
    size num_devices_per_slice_map, out ptr slice_ids, out ptr num_devices, out ptr
    devices_per_slice_map, out fn devices_per_slice_map_deleter
config_serialize PJRT_MultiSlice_Config_Serialize_Args: sized, ptr config, out ptr serialized, out
    size size, out ptr serialized_config, out fn serialized_config_deleter
"""
"""PJRT_Extension_Type values 16 to 18 and 22."""
