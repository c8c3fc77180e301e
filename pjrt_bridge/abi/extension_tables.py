"""PJRT extensions as text: their structs, their functions, and the args structs of these.

Those of TPUs and of several slices are in `pjrt_bridge.abi.tpu_extension_tables`.

A paragraph declares one extension: its name, its PJRT_Extension_Type, the version of the layout
that is given here, and the C name of its struct. A line below declares one field that follows the
`PJRT_Extension_Base`, in order:

- `NAME ARGS: FIELDS` is a function pointer and the args struct it takes. NAME is the field's C name
  without `PJRT_` and the extension's own prefix. FIELDS are in the notation of
  `pjrt_bridge.abi.structs`; `base` stands for a leading struct_size and extension_start, `sized`
  for a struct_size alone, and an args struct that starts with neither has none.
- `void` before NAME marks a function that returns nothing. Every other returns a PJRT_Error.
- `NAME -` is a slot that is deprecated and no longer filled.
- `. TYPE NAME` is a field that is no function.

Source: the public headers pjrt_c_api_*_extension.h, *_extension.h and profiler_c_api.h, mostly of
API 0.114; Custom_Partitioner, Gpu_Custom_Call, HostAllocator and Triton are from older ones. Sizes
were compared with the chains of plugins that state API 0.81, 0.116 and 0.117. Two structs are
longer there than in any public header, so their last fields are not declared: Gpu_Custom_Call (33
bytes) and PhaseCompile (192). There are plugins with version 2 of Triton, of which only version 1
is public.
"""

STRUCTS = """
PJRT_FFI_Type_Info: fn deleter, fn serialize, fn deserialize
PJRT_FFI_UserData: i64 type_id, ptr data
PJRT_Transfers_CrossHostRecvNotifierInfo: ptr user_arg, fn notifier
PJRT_Transfers_CrossHostRemoteSendCallbackInfo: ptr user_arg, fn on_done
PJRT_ExecutableMetadata: ptr serialized_metadata, size serialized_metadata_size
PJRT_XlaTransform_string: ptr data, size size
PJRT_XlaTransform_Callbacks: i64 version, fn dtor, fn transform_hlo_module
PJRT_HloPassPipelineTrace: ptr serialized_trace, size serialized_trace_size
PJRT_Callback_Tpu_SliceBuilderArgs: size struct_size, enum failure_type
PJRT_Callback_PrefatalArgs: size struct_size, enum error_code, ptr error_message, size
    error_message_size
PJRT_Collectives_CpuExecutor: i64 run_id, ptr global_device_ids, size num_global_device_ids, i32
    num_local_participants, enum collective_op_kind, i64 op_id, i64 timeout_in_ns
JAX_CustomCallPartitioner_Callbacks: i64 version, ptr private_data, fn dtor, fn partition, fn
    infer_sharding, fn propagate_user_sharding, bool can_side_effecting_have_replicated_sharding
"""
"""Structs that args structs embed or point to."""

EXTENSIONS = """
Gpu_Custom_Call 0 (v2) PJRT_Gpu_Custom_Call
custom_call PJRT_Gpu_Register_Custom_Call_Args: sized, ptr function_name, size function_name_size,
    i32 api_version, ptr handler_instantiate, ptr handler_prepare, ptr handler_initialize, ptr
    handler_execute

Profiler 1 (v1) PJRT_Profiler_Extension
. ptr profiler_api
. i64 traceme_context_id

Custom_Partitioner 2 (v1) PJRT_Custom_Partitioner_Extension
register_custom_partitioner PJRT_Register_Custom_Partitioner_Args: sized, ptr name, size name_size,
    ptr callbacks
register_batch_partitionable PJRT_Register_Batch_Partitionable_Args: sized, ptr name, size name_size

Stream 3 (v0) PJRT_Stream_Extension
get_stream PJRT_Get_Stream_For_External_Ready_Events_Args: sized, ptr device, out iptr stream
wait_stream PJRT_Wait_Until_Buffer_Ready_On_Stream_Args: sized, iptr stream, ptr buffer

Layouts 4 (v4) PJRT_Layouts_Extension
MemoryLayout_Destroy PJRT_Layouts_MemoryLayout_Destroy_Args: base, ptr layout
MemoryLayout_Serialize PJRT_Layouts_MemoryLayout_Serialize_Args: base, ptr layout, out ptr
    serialized_bytes, out size serialized_bytes_size, out ptr serialized_layout, out fn
    serialized_layout_deleter
Client_GetDefaultLayout PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args: base, ptr client, enum type,
    ptr dims, size num_dims, out ptr layout
Buffer_MemoryLayout PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args: base, ptr buffer, out ptr layout
Topology_GetDefaultLayout PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args: base, ptr
    topology_description, enum type, ptr dims, size num_dims, out ptr layout
Executable_GetOutputLayouts PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args: base, ptr
    executable, out size num_outputs, out ptr layouts
Executable_GetParameterLayouts PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args: base, ptr
    executable, out size num_parameters, out ptr layouts

FFI 5 (v3) PJRT_FFI_Extension
type_register PJRT_FFI_Type_Register_Args: base, ptr type_name, size type_name_size, i64 type_id,
    ptr type_info
user_data_add PJRT_FFI_UserData_Add_Args: base, ptr context, PJRT_FFI_UserData user_data
register_handler PJRT_FFI_Register_Handler_Args: sized, ptr target_name, size target_name_size, ptr
    handler, ptr platform_name, size platform_name_size, enum traits

MemoryDescriptions 6 (v1) PJRT_MemoryDescriptions_Extension
DeviceDescription_MemoryDescriptions PJRT_DeviceDescription_MemoryDescriptions_Args: base, ptr
    device_description, out ptr memory_descriptions, out size num_memory_descriptions, out size
    default_memory_index
MemoryDescription_Kind PJRT_MemoryDescription_Kind_Args: base, ptr memory_description, out ptr kind,
    out size kind_size, out i32 kind_id

Triton 7 (v1) PJRT_Triton_Extension
compile PJRT_Triton_Compile_Args: sized, ptr module, size module_size, ptr arch_name, size
    arch_name_size, i32 num_warps, i32 num_ctas, i32 num_stages, out ptr out_asm, out size
    out_asm_size, out i64 out_smem_bytes, out i32 out_cluster_dim_x, out i32 out_cluster_dim_y, out
    i32 out_cluster_dim_z

RawBuffer 8 (v2) PJRT_RawBuffer_Extension
CreateRawAliasOfBuffer PJRT_RawBuffer_CreateRawAliasOfBuffer_Args: base, ptr buffer, out ptr
    raw_buffer
Destroy PJRT_RawBuffer_Destroy_Args: base, ptr buffer
GetOnDeviceSizeInBytes PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args: base, ptr buffer, out size
    on_device_size_in_bytes
GetMemorySpace PJRT_RawBuffer_GetMemorySpace_Args: base, ptr buffer, out ptr memory_space
CopyRawHostToDevice PJRT_RawBuffer_CopyRawHostToDevice_Args: base, ptr buffer, ptr src, i64 offset,
    i64 transfer_size, out ptr event
CopyRawDeviceToHost PJRT_RawBuffer_CopyRawDeviceToHost_Args: base, ptr buffer, ptr dst, i64 offset,
    i64 transfer_size, out ptr event
GetHostPointer PJRT_RawBuffer_GetHostPointer_Args: base, ptr buffer, out ptr host_pointer

PhaseCompile 9 (v1) PJRT_PhaseCompile_Extension
get_compiler PJRT_PhaseCompile_Get_Compiler_Args: base, out ptr phase_compiler
void destroy_compiler PJRT_PhaseCompile_Destroy_Compiler_Args: base, ptr phase_compiler
run_phases PJRT_PhaseCompile_Run_Phase_Args: base, ptr phase_compiler, ptr input_programs, ptr
    input_programs_sizes, size num_input_programs, ptr phases_to_run, ptr phases_to_run_sizes, size
    num_phases_to_run, ptr compile_options, size compile_options_size, ptr topology, out ptr
    output_programs, out ptr output_programs_sizes, out size num_output_programs
get_phase_names PJRT_PhaseCompile_Get_PhaseNames_Args: base, ptr phase_compiler, out ptr
    phase_names, out ptr phase_names_sizes, out size num_phase_names
void c_buffers_destroy PJRT_PhaseCompile_C_Buffers_Destroy_Args: base, ptr char_buffers, ptr
    char_buffer_sizes, size num_char_buffers

Example 10 (v1) PJRT_Example_Extension
example_method PJRT_ExampleExtension_ExampleMethod_Args: ptr extension_cpp, i64 value
create PJRT_ExampleExtension_CreateExampleExtensionCpp_Args: out ptr extension_cpp
destroy PJRT_ExampleExtension_DestroyExampleExtensionCpp_Args: ptr extension_cpp

Unknown 11 (v0) PJRT_Extension_Base

CrossHostTransfers 12 (v6) PJRT_CrossHostTransfers_Extension
Client_MakeCrossHostReceiveBuffers PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args:
    base, ptr client, size num_shapes, ptr shape_num_dims, ptr num_dims, ptr element_types, ptr
    layouts, ptr device, PJRT_Transfers_CrossHostRecvNotifierInfo notifier, ptr buffers, out size
    num_buffers
void Buffer_CopyToRemoteDevice PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args: base, ptr buffer,
    ptr event, ptr serialized_descriptor, ptr serialized_descriptor_size,
    PJRT_Transfers_CrossHostRemoteSendCallbackInfo on_done
Client_CrossHostReceiveBuffers PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args: base, ptr
    client, size num_shapes, ptr shape_num_dims, ptr num_dims, ptr element_types, ptr layouts, ptr
    device, ptr src_global_device_ids, ptr transfer_keys, ptr buffers
Client_CrossHostSendBuffers PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args: base, ptr client,
    size num_buffers, ptr buffers, ptr dst_global_device_ids, ptr transfer_keys, ptr send_events

ExecutableMetadata 13 (v1) PJRT_ExecutableMetadata_Extension
get_executable_metadata PJRT_ExecutableMetadata_GetExecutableMetadata_Args: ptr executable, out ptr
    metadata
void destroy_serialized_metadata PJRT_ExecutableMetadata_DestroySerializedMetadata_Args: ptr
    metadata

Callback 14 (v1) PJRT_Callback_Extension
register_callback PJRT_Callback_RegisterCallback_Args: sized, ptr client, enum type, fn callback,
    ptr user_arg
invoke_callback PJRT_Callback_InvokeCallback_Args: sized, ptr client, enum type, ptr args

HostAllocator 15 (v0) PJRT_HostAllocator_Extension
get_preferred_alignment PJRT_HostAllocator_GetPreferredAlignment_Args: base, ptr client, out size
    preferred_alignment
allocate PJRT_HostAllocator_Allocate_Args: base, ptr client, size size, size alignment, out ptr ptr
free PJRT_HostAllocator_Free_Args: base, ptr client, ptr ptr

Shardings 19 (v1) PJRT_Shardings_Extension
Executable_ParameterShardings PJRT_Shardings_PJRT_Executable_ParameterShardings_Args: base, ptr
    executable, out size num_parameters, out ptr shardings, out ptr sharding_sizes
Executable_OutputShardings PJRT_Shardings_PJRT_Executable_OutputShardings_Args: base, ptr
    executable, out size num_outputs, out ptr shardings, out ptr sharding_sizes

AbiVersion 20 (v1) PJRT_AbiVersion_Extension
client_runtime_abi_version PJRT_Client_RuntimeAbiVersion_Args: sized, ptr client, out ptr
    abi_version
executable_get_abi_version PJRT_Executable_GetAbiVersion_Args: sized, ptr executable, out ptr
    abi_version
runtime_abi_version_destroy PJRT_RuntimeAbiVersion_Destroy_Args: sized, ptr abi_version
runtime_abi_version_is_compatible_with_runtime PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args:
    sized, ptr abi_version, ptr other_abi_version
runtime_abi_version_is_compatible_with_executable
    PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args: sized, ptr abi_version, ptr
    executable_abi_version
runtime_abi_version_to_proto PJRT_RuntimeAbiVersion_ToProto_Args: sized, ptr abi_version, out ptr
    serialized_proto, out size serialized_proto_size, out ptr serialized_proto_holder, out fn
    serialized_proto_deleter
runtime_abi_version_platform_id PJRT_RuntimeAbiVersion_PlatformId_Args: sized, ptr abi_version, out
    u64 platform_id
executable_abi_version_destroy PJRT_ExecutableAbiVersion_Destroy_Args: sized, ptr abi_version
executable_abi_version_to_proto PJRT_ExecutableAbiVersion_ToProto_Args: sized, ptr abi_version, out
    ptr serialized_proto, out size serialized_proto_size, out ptr serialized_proto_holder, out fn
    serialized_proto_deleter
executable_abi_version_platform_id PJRT_ExecutableAbiVersion_PlatformId_Args: sized, ptr
    abi_version, out u64 platform_id
runtime_abi_version_from_proto PJRT_RuntimeAbiVersion_FromProto_Args: sized, ptr serialized_proto,
    size serialized_proto_size, out ptr abi_version
executable_abi_version_from_proto PJRT_ExecutableAbiVersion_FromProto_Args: sized, ptr
    serialized_proto, size serialized_proto_size, out ptr abi_version

Collectives 21 (v1) PJRT_Collectives_Extension
collectives_destroy PJRT_Collectives_Destroy_Args: sized, ptr collectives
collectives_create_communicators PJRT_Collectives_CreateCommunicators_Args: sized, ptr collectives,
    ptr device_ids, size num_device_ids, ptr clique_ids, ptr clique_id_sizes, size num_clique_ids,
    ptr rank_ids, size num_device_ranks, out ptr communicators, out size num_communicators, out ptr
    communicators_holder, out fn communicators_holder_deleter
communicator_destroy PJRT_Collectives_Communicator_Destroy_Args: sized, ptr communicator
communicator_all_reduce PJRT_Collectives_Communicator_AllReduce_Args: sized, ptr communicator, ptr
    send_buffer_ptr, size send_buffer_size, ptr recv_buffer_ptr, size recv_buffer_size, enum
    primitive_type, size count, enum reduction_kind, ptr cpu_executor, out ptr event
communicator_reduce_scatter PJRT_Collectives_Communicator_ReduceScatter_Args: sized, ptr
    communicator, ptr send_buffer_ptr, size send_buffer_size, ptr recv_buffer_ptr, size
    recv_buffer_size, enum primitive_type, size count, enum reduction_kind, ptr cpu_executor, out
    ptr event
communicator_all_gather PJRT_Collectives_Communicator_AllGather_Args: sized, ptr communicator, ptr
    send_buffer_ptr, size send_buffer_size, ptr recv_buffer_ptr, size recv_buffer_size, enum
    primitive_type, size count, ptr cpu_executor, out ptr event
communicator_collective_permute PJRT_Collectives_Communicator_CollectivePermute_Args: sized, ptr
    communicator, ptr send_buffer_ptr, size send_buffer_size, ptr recv_buffer_ptr, size
    recv_buffer_size, enum primitive_type, size count, bool has_source_rank, i64 source_rank, ptr
    target_ranks, size num_target_ranks, ptr cpu_executor, out ptr event
communicator_all_to_all PJRT_Collectives_Communicator_AllToAll_Args: sized, ptr communicator, ptr
    send_buffers_ptrs, ptr send_buffers_sizes, size num_send_buffers, ptr recv_buffers_ptrs, ptr
    recv_buffers_sizes, size num_recv_buffers, enum primitive_type, size count, ptr cpu_executor,
    out ptr event
communicator_to_string PJRT_Collectives_Communicator_ToString_Args: sized, ptr communicator, out ptr
    str, out size str_size, out ptr str_holder, out fn str_holder_deleter

HostMemoryAllocator 23 (v0) PJRT_HostMemoryAllocator_Extension
allocate PJRT_HostMemoryAllocator_Allocate_Args: base, ptr client, size size, i32 numa_node, out ptr
    ptr, out fn deleter, out ptr deleter_arg

XlaTransform 24 (v1) PJRT_Xla_Transform_Extension
register_xla_transform PJRT_Register_Xla_Transform_Args: sized, ptr name, size name_size, enum
    stage, ptr callbacks
clear_xla_transform PJRT_Clear_Xla_Transform_Args: sized, enum stage, ptr name, size name_size, ptr
    callbacks, out bool cleared
get_hlo_pass_pipeline_trace PJRT_Xla_Transform_Get_Hlo_Pass_Pipeline_Trace_Args: sized,
    PJRT_XlaTransform_string hlo_module, out PJRT_HloPassPipelineTrace trace
void destroy_hlo_pass_pipeline_trace PJRT_Xla_Transform_Destroy_Hlo_Pass_Pipeline_Trace_Args: sized,
    ptr trace
"""
"""All PJRT_Extension_Type values from 0 to 24 except 16 to 18 and 22."""

PROFILER_API = """
void error_destroy PLUGIN_Profiler_Error_Destroy_Args: sized, ptr priv, ptr error
void error_message PLUGIN_Profiler_Error_Message_Args: sized, ptr priv, ptr error, out ptr message,
    out size message_size
error_get_code PLUGIN_Profiler_Error_GetCode_Args: sized, ptr priv, ptr error, out i32 code
create PLUGIN_Profiler_Create_Args: sized, ptr options, size options_size, out ptr profiler
destroy PLUGIN_Profiler_Destroy_Args: sized, ptr profiler
start PLUGIN_Profiler_Start_Args: sized, ptr profiler
stop PLUGIN_Profiler_Stop_Args: sized, ptr profiler
collect_data PLUGIN_Profiler_CollectData_Args: sized, ptr profiler, ptr buffer, out size
    buffer_size_in_bytes
consume PLUGIN_Profiler_Consume_Args: sized, ptr profiler, out ptr result
void consume_result_destroy PLUGIN_Profiler_ConsumeResult_Destroy_Args: sized, ptr consume_result
serialize PLUGIN_Profiler_Serialize_Args: sized, ptr profiler, ptr consume_result, out ptr
    serialized_bytes, out size serialized_size
"""
"""Functions of PLUGIN_Profiler_Api, after its struct_size and priv; errors are its own type."""
